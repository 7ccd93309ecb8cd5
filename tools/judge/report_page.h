// Draws evaluation records as one static HTML page: no script, nothing from the net. It is readable
// with 1 record and with 500, in light and dark, and without the plots (each has its numbers in a
// table).
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace fibshim::judge {

// Those that count: if several records have the same record_key(), the last one.
std::vector<nlohmann::ordered_json> last_records(std::vector<nlohmann::ordered_json> records);

// Keys that are missing or of another type are left out: the records may come from anybody.
std::string make_report_page(const std::string& title,
                             const std::vector<nlohmann::ordered_json>& records);

}  // namespace fibshim::judge
