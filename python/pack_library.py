# SPDX-License-Identifier: Apache-2.0
"""Packs a built libspops.so as a wheel of its own, which the package spops finds by an entry point.

    python python/pack_library.py LIBRARY FOLDER --name spops-cu13

Needs nothing but Python, so that a machine without a network can build wheels with CUDA. The wheel is
py3-none-linux_ARCHITECTURE: Python, torch and JAX are not compiled against. Its version is the
library's.
"""
import argparse
import base64
import hashlib
import platform
import re
import zipfile
from pathlib import Path

root = Path(__file__).resolve().parents[1]


def version() -> str:
    text = (root / "include/spops/types.h").read_text()
    return ".".join(re.search(rf"SPOPS_VERSION_{part} (\d+)", text).group(1) for part in ("MAJOR", "MINOR", "PATCH"))


def files(name: str, library: Path) -> dict[str, bytes]:
    package = name.replace("-", "_")
    info = f"{package}-{version()}.dist-info"
    about = f"The library of spops for CUDA {name.removeprefix('spops-cu')}"
    metadata = f"""Metadata-Version: 2.4
Name: {name}
Version: {version()}
Summary: {about}
License-Expression: Apache-2.0
License-File: LICENSE
License-File: NOTICE
Requires-Python: >=3.10
Requires-Dist: spops=={version()}
"""
    wheel = f"Wheel-Version: 1.0\nGenerator: pack_library.py\nRoot-Is-Purelib: false\nTag: {tag()}\n"
    code = f'# SPDX-License-Identifier: Apache-2.0\n"""{about}."""\nfrom pathlib import Path\n\nlibrary = Path(__file__).with_name("libspops.so")\n'
    return {
        f"{package}/__init__.py": code.encode(),
        f"{package}/libspops.so": library.read_bytes(),
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": wheel.encode(),
        f"{info}/entry_points.txt": f"[spops.library]\n{package} = {package}:library\n".encode(),
        f"{info}/licenses/LICENSE": (root / "LICENSE").read_bytes(),
        f"{info}/licenses/NOTICE": (root / "NOTICE").read_bytes(),
    }


def tag() -> str:
    return f"py3-none-linux_{platform.machine()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--name", default="spops-cu13")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    package = args.name.replace("-", "_")
    path = args.folder / f"{package}-{version()}-{tag()}.whl"
    record = f"{package}-{version()}.dist-info/RECORD"
    lines = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        for name, data in files(args.name, args.library).items():
            entry = zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0))  # the same bytes from the same library
            entry.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
            z.writestr(entry, data, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(data)}\n")
        z.writestr(zipfile.ZipInfo(record, (2026, 1, 1, 0, 0, 0)), "".join(lines) + f"{record},,\n")
    print(f"{path} {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
