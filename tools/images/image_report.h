// Prints the contents of an image as JSON and as text.
#pragma once

#include "tools/base/json_writer.h"
#include "tools/images/image_contents.h"

namespace fibshim::tools {

// Writes the contents as members of the object that is open.
void write_image(const ImageContents& image, JsonWriter* json);

std::string image_text(const ImageContents& image, const std::string& indent);

}  // namespace fibshim::tools
