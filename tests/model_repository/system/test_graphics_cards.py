"""Graphics cards by the files of a made-up kernel."""

from __future__ import annotations

from pathlib import Path

from model_repository.system.graphics_cards import RenderNode, is_in_wsl, nvidia_driver_version, render_nodes


def test_cards_of_known_vendors_are_named_and_whether_their_files_open(tmp_path: Path) -> None:
    """A container sees the cards of its host, but has their files only with `--device /dev/dri`."""
    for number, vendor in enumerate(("0x1002", "0x8086", "0x1af4")):  # the last one is a virtual machine's
        folder = tmp_path / f"sys/class/drm/renderD{128 + number}" / "device"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
    files = tmp_path / "dev" / "dri"
    files.mkdir(parents=True)
    (files / "renderD128").touch()
    assert render_nodes(tmp_path) == [
        RenderNode(files / "renderD128", "AMD", True),
        RenderNode(files / "renderD129", "Intel", False),
    ]


def test_the_driver_of_nvidia_tells_its_version(tmp_path: Path) -> None:
    assert nvidia_driver_version(tmp_path) is None
    folder = tmp_path / "sys" / "module" / "nvidia"
    folder.mkdir(parents=True)
    (folder / "version").write_text("570.86.15\n")
    assert nvidia_driver_version(tmp_path) == "570.86.15"


def test_wsl_has_a_file_of_its_own_for_cards(tmp_path: Path) -> None:
    assert not is_in_wsl(tmp_path)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "dxg").touch()
    assert is_in_wsl(tmp_path)
