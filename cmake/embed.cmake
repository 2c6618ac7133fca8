# Writes the device sources as one C file of byte arrays:
#   cmake -DOUT=FILE -DFOLDER=src/cuda/device -DEXTRA=src/base/philox.h -P embed.cmake
# A source's name is its path in the folder (EXTRA: its file's own), which is what the includes of the others say.
file(GLOB files ${FOLDER}/*.cu ${FOLDER}/*.cuh ${FOLDER}/*.h ${FOLDER}/hopper/*.cu ${FOLDER}/hopper/*.cuh)
list(APPEND files ${EXTRA})
set(tables "")
set(rows "")
set(hashes "")
set(count 0)
foreach(file ${files})
    string(REPLACE "${FOLDER}/" "" name ${file})
    if(name STREQUAL file)
        get_filename_component(name ${file} NAME)
    endif()
    file(READ ${file} bytes HEX)
    string(REGEX REPLACE "(................................................................)" "\\1\n" bytes "${bytes}")
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
    file(SHA256 ${file} hash)
    string(APPEND hashes "${name}:${hash};")
    string(APPEND tables "static const unsigned char text_${count}[] = {\n${bytes}0};\n")
    string(APPEND rows "    {\"${name}\", (const char *)text_${count}},\n")
    math(EXPR count "${count} + 1")
endforeach()
string(SHA256 hash "${hashes}")
file(WRITE ${OUT} "/* Made from src/cuda/device by cmake/embed.cmake. */
#include \"cuda/sources.h\"
${tables}
const attn__source attn__sources[] = {
${rows}    {0, 0}};
const int attn__sources_count = ${count};
const char attn__sources_hash[] = \"${hash}\";
")
