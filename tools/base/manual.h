// Fills in the man pages of tools/man/*.in: a line "@KEYWORD@" is replaced by a section or list
// that is made from a table in the code.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace fibshim::tools {

// The page's .TH line.
std::string manual_head(const std::string& name, int section);

// This function knows the keywords SETTINGS, FOLDER_SETTINGS, OUTCOMES, REASONS, LIMITS and "SEE name(1)
// ...". `expand` returns the text of all others.
std::string fill_manual(std::string_view page,
                        const std::function<std::string(std::string_view)>& expand);

// `text` with roff's special characters escaped. roff_sentence() adds a capital and a full stop.
std::string roff(std::string_view text);
std::string roff_sentence(std::string_view text);

}  // namespace fibshim::tools
