"""A real Chromium: the one that is installed, or Debian's, or a reason why there is none."""

import os
import shutil
import subprocess

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def installed() -> tuple[str | None, str]:
    """(path, why not)"""
    if path := find():
        return path, ""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return None, "there is no Chromium, and it cannot be installed without root and apt-get"
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        for command in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
            subprocess.run(["apt-get", "-q", *command], check=True, capture_output=True, timeout=240, env=environment)
    except (subprocess.SubprocessError, OSError) as error:
        return None, f"there is no Chromium, and apt-get could not install it: {error}"
    return find(), "apt-get installed Chromium, but it is not to be found"
