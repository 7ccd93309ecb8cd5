// Compiles once the part of {fmt} that its headers only declare. Debian has {fmt} only as a shared
// library, which the CLI must not need. With FMT_HEADER_ONLY every object would hold this code, and
// compiling it would take more than half of the time that the tools take. The list is that of
// src/format.cc in {fmt} 8 and 9; tools.mk defines FMT_HEADER_ONLY for other versions.
#ifndef FMT_HEADER_ONLY
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {
#if FMT_VERSION < 90000
int (*instantiate_format_float)(double, int, float_specs, buffer<char>&) = format_float;
#endif
template dragonbox::decimal_fp<float> dragonbox::to_decimal(float);
template dragonbox::decimal_fp<double> dragonbox::to_decimal(double);
template locale_ref::locale_ref(const std::locale& loc);
template auto locale_ref::get<std::locale>() const -> std::locale;
template auto thousands_sep_impl(locale_ref) -> thousands_sep_result<char>;
template auto decimal_point_impl(locale_ref) -> char;
template void buffer<char>::append(const char*, const char*);
template void vformat_to(buffer<char>&, string_view, basic_format_args<FMT_BUFFER_CONTEXT(char)>,
                         locale_ref);
}  // namespace detail
FMT_END_NAMESPACE
#endif
