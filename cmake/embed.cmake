# SPDX-License-Identifier: Apache-2.0
# Writes files as C byte arrays with a final 0 (string literals have a length limit).
#   cmake -DOUTPUT=out.c -DSYMBOL=name -DFILE=path -P embed.cmake
#       const unsigned char name[], const size_t name_bytes (without the 0)
#   cmake -DOUTPUT=out.c -DHEADERS=a.h,b.h -DINCLUDE_DIR=dir -P embed.cmake
#       the spops_embedded_header_* tables

function(as_bytes path out)
    file(READ "${path}" hex HEX)
    string(REGEX REPLACE "(................................)" "\\1\n    " hex "${hex}")
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
    set(${out} "${hex}" PARENT_SCOPE)
endfunction()

if(DEFINED SYMBOL)
    as_bytes("${FILE}" bytes)
    file(WRITE "${OUTPUT}" "// Made by cmake/embed.cmake.
#include <stddef.h>

extern const unsigned char ${SYMBOL}[];
extern const size_t ${SYMBOL}_bytes;
const unsigned char ${SYMBOL}[] = {
    ${bytes}0x00};
const size_t ${SYMBOL}_bytes = sizeof ${SYMBOL} - 1;
")
    return()
endif()

string(REPLACE "," ";" names "${HEADERS}")
list(LENGTH names count)
set(arrays "")
set(name_rows "")
set(source_rows "")
set(i 0)
foreach(name IN LISTS names)
    as_bytes("${INCLUDE_DIR}/${name}" bytes)
    string(APPEND arrays "static const unsigned char header_${i}[] = {\n    ${bytes}0x00};\n")
    string(APPEND name_rows "    \"${name}\",\n")
    string(APPEND source_rows "    (const char *)header_${i},\n")
    math(EXPR i "${i} + 1")
endforeach()
file(WRITE "${OUTPUT}" "// Made by cmake/embed.cmake: the headers that NVRTC is handed.
extern const char *const spops_embedded_header_names[];
extern const char *const spops_embedded_header_sources[];
extern const int spops_num_embedded_headers;

${arrays}
const char *const spops_embedded_header_names[] = {
${name_rows}};
const char *const spops_embedded_header_sources[] = {
${source_rows}};
const int spops_num_embedded_headers = ${count};
")
