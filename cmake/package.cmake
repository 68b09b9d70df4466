# cpack reads this before it packs.
if(CPACK_SWITCHYARD_ARCH STREQUAL "native")
  message(FATAL_ERROR "the kernels are compiled for this processor alone: configure with `cmake --preset package`, or with "
                      "-DSWITCHYARD_ARCH=x86-64-v3")
endif()
