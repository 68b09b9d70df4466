# Spack recipe. Put it into packages/switchyard/ of a repository of your own (spack repo create).
# It was written from Spack's documented schema and recipes of spack-packages of 2026-07, and
# compiled with `python3 -m py_compile`. It was not linted, concretized or built.
# There is no public download yet: set `url` and sha256 to those of your tarball, which
# `cpack --config CPackSourceConfig.cmake` makes, or `git` to your clone.

from spack_repo.builtin.build_systems.cmake import CMakePackage
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class Switchyard(CMakePackage, CudaPackage):
    """Trainer of mixture-of-experts decoders on MPI ranks, on CPUs and GPUs, with the analysis of
    what each expert does."""

    homepage = "https://switchyard.invalid"
    url = "file:///path/to/switchyard-0.2.0.tar.gz"  # CHANGE
    git = "file:///path/to/switchyard"  # CHANGE

    # license() follows when the owner has chosen one.
    version("develop", branch="main")
    version("0.2.0", sha256="0000000000000000000000000000000000000000000000000000000000000000")  # CHANGE

    variant("plots", default=True, description="Pictures of the reports, by gnuplot")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.22:", type="build")
    depends_on("pkgconfig", type="build")

    depends_on("mpi@3.1:")
    depends_on("hdf5~mpi")
    depends_on("boost@1.74: +program_options")
    depends_on("fmt")
    depends_on("nlohmann-json")
    depends_on("openssl")
    depends_on("sentencepiece")
    depends_on("pcre2")
    depends_on("icu4c")
    depends_on("zlib-api")
    depends_on("zstd")
    depends_on("gnuplot", when="+plots", type="run")
    depends_on("cuda@12.5:", when="+cuda")
    for arch in CudaPackage.cuda_arch_values:
        depends_on(f"nccl cuda_arch={arch}", when=f"+cuda cuda_arch={arch}")

    conflicts("%gcc@:11", msg="C++20 needs GCC 12 or later")
    conflicts("cuda_arch=none", when="+cuda", msg="cuda_arch=90, for example, is needed")

    def cmake_args(self):
        args = [
            # ccache would run around Spack's compiler wrappers.
            self.define("SWITCHYARD_CCACHE", False),
            self.define("SWITCHYARD_CUDA", "ON" if self.spec.satisfies("+cuda") else "OFF"),
            self.define("SWITCHYARD_TESTS", False),
            self.define("MPI_C_COMPILER", self.spec["mpi"].mpicc),
        ]
        if self.spec.satisfies("+cuda"):
            # The kernels for 9.0 and 10.0 use features that only these architectures have.
            special = {"90": "90a", "100": "100a"}
            archs = [special.get(a, a) for a in self.spec.variants["cuda_arch"].value]
            args.append(self.define("SWITCHYARD_CUDA_ARCHITECTURES", [f"{a}-real" for a in archs]))
        return args

    def setup_run_environment(self, env):
        env.set("SWITCHYARD_LAUNCH", self.prefix.share.switchyard.launch)

    def test_version(self):
        """the installed program starts, and prints its version"""
        program = which(self.prefix.bin.switchyard, required=True)
        output = program("version", output=str.split, error=str.split)
        assert str(self.spec.version) in output or self.spec.satisfies("@develop")

    def test_selftest(self):
        """the installed program computes right on this machine"""
        program = which(self.prefix.bin.switchyard, required=True)
        output = program("selftest", output=str.split, error=str.split)
        assert "selftest passed" in output

    def test_configuration(self):
        """the installed program reads an installed configuration"""
        program = which(self.prefix.bin.switchyard, required=True)
        program("inspect", "--config", join_path(self.prefix.share.switchyard.configs, "models", "mixtral-8x7b.ini"))
