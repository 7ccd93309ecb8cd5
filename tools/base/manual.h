// Fills the man pages in tools/man/*.in: a line "@KEYWORD@" stands for a section or list that is made
// from a table of the code.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace fibshim::tools {

// The page's .TH line.
std::string manual_head(const std::string& name, int section);

// `expand` gives the text of the keywords that this module does not know. Known here: SETTINGS,
// FOLDER_SETTINGS, OUTCOMES, LIMITS, and "SEE name(1) ...".
std::string fill_manual(std::string_view page,
                        const std::function<std::string(std::string_view)>& expand);

// `text` with roff's special characters escaped; as a sentence, with a capital and a full stop.
std::string roff(std::string_view text);
std::string roff_sentence(std::string_view text);

}  // namespace fibshim::tools
