# kernels/cpu, compiled once for each instruction set. kernels/cpu/processor.cpp selects one at
# start.
#   sy_cpu_isas           their names, the narrowest first
#   sy_cpu_isa_objects    a relocatable object for each, with one global symbol: switchyard_cpu_NAME
# Call sy_add_cpu_isas(SOURCES...) after sy_options exists.

# Name and compiler's option: one a line, the narrowest first.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
  set(rows "sse42 -march=x86-64-v2" "avx2 -march=x86-64-v3" "avx512 -march=x86-64-v4"
      "avx512bf16 -march=x86-64-v4 -mavx512bf16" "amx -march=x86-64-v4 -mavx512bf16 -mamx-tile -mamx-bf16")
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(rows "neon")  # the compiler's default has it
else()
  set(rows "baseline")
endif()
set(SWITCHYARD_ISAS "" CACHE STRING
    "Instruction sets for which the CPU kernels are compiled, by name; empty: all. One compiles faster than all.")

include(CheckCXXCompilerFlag)
# The kernels say in which order they sum; the compiler may contract a*b+c, never reorder.
set(sy_kernel_options -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math)
# Clang gives a reduction several vectors of partial sums or one, depending on the code around it.
# Here, it has one.
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  list(APPEND sy_kernel_options "SHELL:-mllvm -force-vector-interleave=1")
endif()
set(isa_options ${sy_kernel_options})
foreach(option
        # Tuned for some processors, GCC fuses multiplications and additions in loops with several
        # sums, but not in loops with one. A row of a product would then depend on the number of
        # rows that are computed with it.
        --param=avoid-fma-max-bits=0
        # A symbol that is unique in the process stays so when it is made local to its object.
        -fno-gnu-unique
        # Compiled when linked, the code of all instruction sets would be together again.
        -fno-lto)
  string(MAKE_C_IDENTIFIER "SWITCHYARD_HAS${option}" has)
  check_cxx_compiler_flag("${option}" ${has})
  if(${has})
    list(APPEND isa_options "${option}")
  endif()
endforeach()

# An inline function is compiled with each file that calls it, and the linker keeps the first one:
# code for AVX-512 could then run on a processor without it. Therefore the files of an instruction
# set are first linked to one object, in which only the table of kernels stays global.
# The linker is GNU's: that of LLVM has no --force-group-allocation.
find_program(SWITCHYARD_LD NAMES ld.bfd ld REQUIRED)
find_program(SWITCHYARD_OBJCOPY NAMES objcopy ${CMAKE_OBJCOPY} REQUIRED)
mark_as_advanced(SWITCHYARD_LD SWITCHYARD_OBJCOPY)
function(sy_add_cpu_isas)
  set(known "")
  foreach(row ${rows})
    separate_arguments(row)
    list(POP_FRONT row name)
    list(APPEND known ${name})
    if(SWITCHYARD_ISAS AND NOT name IN_LIST SWITCHYARD_ISAS)
      continue()
    endif()
    set(symbol switchyard_cpu_${name})
    add_library(sy_cpu_${name} OBJECT ${ARGN})
    target_link_libraries(sy_cpu_${name} PRIVATE sy_options sy_strict OpenMP::OpenMP_CXX)
    target_compile_options(sy_cpu_${name} PRIVATE ${isa_options} ${row})
    target_compile_definitions(sy_cpu_${name} PRIVATE SWITCHYARD_CPU_KERNELS=${symbol})
    set(object ${CMAKE_BINARY_DIR}/${symbol}.o)
    add_custom_command(
      OUTPUT ${object}
      COMMAND ${SWITCHYARD_LD} -r --force-group-allocation -o ${object}.all $<TARGET_OBJECTS:sy_cpu_${name}>
      COMMAND ${SWITCHYARD_OBJCOPY} --keep-global-symbol=${symbol} ${object}.all ${object}
      DEPENDS sy_cpu_${name} $<TARGET_OBJECTS:sy_cpu_${name}>
      COMMENT "Linking the CPU kernels of ${name}"
      COMMAND_EXPAND_LISTS VERBATIM)
    list(APPEND names ${name})
    list(APPEND objects ${object})
  endforeach()
  set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  foreach(name ${SWITCHYARD_ISAS})
    if(NOT name IN_LIST known)
      message(FATAL_ERROR "SWITCHYARD_ISAS: there is no instruction set ${name}: choose of ${known}")
    endif()
  endforeach()
  set(sy_cpu_isas ${names} PARENT_SCOPE)
  set(sy_cpu_isa_objects ${objects} PARENT_SCOPE)
endfunction()
