"""Builds the C++ extensions. Everything else about the package is in pyproject.toml.

No torch headers, no -march=native: the wheel runs on any processor of its architecture and chooses the instruction
set at run time. -ffp-contract=off keeps multiply and add separately rounded: the bit-equality of results rests on it.
-fno-math-errno and -fno-trapping-math give up errno and exception flags, never a result; without them, loops with a
square root or a select are not vectorised.
"""

from pathlib import Path

from pybind11.setup_helpers import Pybind11Extension
from setuptools import setup

FLAGS = ["-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-pthread", "-Wall", "-Wextra", "-g0"]


def extension(name: str, sources: list[str]) -> Pybind11Extension:
    """One extension inside the package, rebuilt when any header changes."""
    return Pybind11Extension(
        f"megatron_zero.{name}",
        sources=sources,
        include_dirs=["csrc"],
        depends=sorted(str(header) for header in Path("csrc").glob("*/*.h")),
        cxx_std=17,
        extra_compile_args=FLAGS,
        extra_link_args=["-pthread"],
    )


setup(
    ext_modules=[
        extension(
            "_C_adam",
            ["csrc/adam/adam_dispatch.cpp", "csrc/adam/bindings.cpp", "csrc/common/cpu_features.cpp"],
        ),
        extension("_C_dataset", ["csrc/dataset/index_builders.cpp", "csrc/dataset/bindings.cpp"]),
    ]
)
