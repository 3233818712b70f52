"""The replay of a step's decoding as a moving picture, for the README, from a recorded conversation, without a model.

`python -m tests.ui.page.animation FILE.webp`
"""

import io
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image

from tests.ui.browser import choose_file, open_browser, open_page, served, settle, side_tab, tab, until
from tests.ui.record import FOLDER
from tests.ui.workspaces import scripted_workspace

SIZE = {"width": 1100, "height": 760}
STEP_MS = 90  # between two frames, at least
LAST_MS = 2500  # that the end stands
MOST_BYTES = 2_000_000


def main(path: Path) -> None:
    with (
        TemporaryDirectory() as scratch,
        served(scripted_workspace(Path(scratch), {})) as address,
        open_browser() as browser,
    ):
        page = open_page(browser.new_context(viewport=SIZE, color_scheme="light"), address)
        side_tab(page, "Chats")
        choose_file(page, "#replay", FOLDER / "artists.jsonl")
        until(page, "#chat", "more than three")
        tab(page, "Speed")
        page.click("#decoding [data-expand]")
        settle()
        frames = list(_replayed(page))
    size = save(frames, path)
    print(f"{path}: {len(frames)} frames, {size / 1e6:.2f} MB")


def _replayed(page: Any) -> Any:
    """Frames from the first pass to the last, and for how long each is shown: as long as a busy machine took for it."""
    page.click("#decoding [data-play]")
    while True:
        began, over = time.monotonic(), page.inner_text("#decoding [data-play]").endswith("Replay")
        frame = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        time.sleep(max(0.0, STEP_MS / 1e3 - (time.monotonic() - began)))
        yield frame, LAST_MS if over else round(1e3 * (time.monotonic() - began))
        if over:
            return


def save(replayed: list[tuple[Image.Image, int]], path: Path) -> int:
    """Write the frames with their times; gives the bytes. Raises ValueError where they are more than a README should carry."""
    frames, times = [frame for frame, _ in replayed], [ms for _, ms in replayed]
    path.parent.mkdir(parents=True, exist_ok=True)
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=times, loop=0, quality=70, method=4)
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ValueError(f"{path} has {size:,} bytes, more than {MOST_BYTES:,}: take fewer frames or a smaller window")
    return size


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "ui/pictures/decoding.webp"))
