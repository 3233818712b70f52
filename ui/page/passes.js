// The passes of a decoded step, broken into lines that fit the width: columns stay positions, rows stay passes.
(() => {
  const GAP = 3, NUMBER = 28; // pixels between columns, and of the column with the passes' numbers

  // Own widths of the columns, by position. Cells stretch to their column, so they are measured at their start.
  const widthsOf = (grid) => {
    grid.classList.add("measured");
    const widths = [];
    for (const cell of grid.querySelectorAll("span[data-at]")) {
      const at = Number(cell.dataset.at);
      widths[at] = Math.max(widths[at] ?? 14, Math.ceil(cell.getBoundingClientRect().width));
    }
    grid.classList.remove("measured");
    return Array.from(widths, (width) => width ?? 14);
  };

  // [first, end) of each line.
  const linesOf = (widths, room) => {
    const lines = [];
    let first = 0, used = 0;
    widths.forEach((width, at) => {
      if (at > first && used + width + GAP > room) {
        lines.push([first, at]);
        [first, used] = [at, 0];
      }
      used += width + GAP;
    });
    return [...lines, [first, widths.length]];
  };

  const placed = (cell, row, column, span = 1) => {
    cell.style.cssText = `grid-row:${row};grid-column:${column} / span ${span}`;
    return cell;
  };

  const heading = (text, column) => {
    const told = document.createElement("small");
    told.className = "where";
    told.textContent = text;
    told.style.cssText = `grid-row:1;grid-column:${column}`;
    return told;
  };

  // The part of a bracket that stands in a line; its words stand in a row of their own, over its first part.
  const bracketIn = (bracket, [first, end], row) => {
    const from = Number(bracket.dataset.at), to = from + Number(bracket.dataset.span);
    const left = Math.max(from, first), right = Math.min(to, end);
    if (left >= right) return [];
    const part = bracket.cloneNode(false);
    part.classList.toggle("goes-on", right < to);
    part.classList.toggle("came", left > from);
    const words = left === from ? bracket.querySelector("small")?.cloneNode(true) : null;
    if (words) words.dataset.round = bracket.dataset.round;
    const told = words ? [placed(words, row, 2, end - first)] : [];
    return [...told, placed(part, row + 1, left - first + 2, right - left)];
  };

  const lineOf = (line, parts, widths, text) => {
    const [first, end] = line;
    const grid = document.createElement("div");
    grid.className = "passes line";
    grid.style.gridTemplateColumns = [NUMBER, ...widths.slice(first, end)].map((width) => `${width}px`).join(" ");
    const where = first >= text ? "beyond the end" : `tokens ${first + 1} to ${Math.min(end, text)} of ${text}`;
    grid.append(heading("pass", 1), heading(where, "2 / -1"));
    const inside = parts.cells.filter(({ dataset }) => first <= Number(dataset.at) && Number(dataset.at) < end);
    const rounds = [...new Set(inside.map((cell) => cell.dataset.round))].sort((a, b) => a - b);
    rounds.forEach((round, place) => {
      const row = 3 * place + 2; // words, bracket, tokens
      const own = (part) => part.dataset.round === round;
      for (const bracket of parts.brackets.filter(own)) grid.append(...bracketIn(bracket, line, row));
      grid.append(placed(parts.numbers.find(own).cloneNode(true), row + 2, 1));
      for (const cell of inside.filter(own)) {
        grid.append(placed(cell.cloneNode(true), row + 2, Number(cell.dataset.at) - first + 2));
      }
    });
    return grid;
  };

  const lay = (box) => {
    const grid = box.querySelector(".passes:not(.line)");
    const style = getComputedStyle(box);
    const room = box.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight) - NUMBER - GAP;
    if (room <= 0 || box.dataset.room === String(room)) return; // in a hidden tab, or laid already
    grid.hidden = false;
    box.widths ??= widthsOf(grid);
    box.dataset.room = room;
    box.querySelectorAll(".line").forEach((line) => line.remove());
    const parts = {
      cells: [...grid.querySelectorAll("span[data-at]")],
      brackets: [...grid.querySelectorAll(".bracket")],
      numbers: [...grid.querySelectorAll(".number")],
    };
    const widths = box.widths.map((width) => Math.min(width, room - GAP));
    box.append(...linesOf(widths, room).map((line) => lineOf(line, parts, widths, Number(grid.dataset.text))));
    grid.hidden = true;
  };

  const sizes = new ResizeObserver((seen) => seen.forEach(({ target }) => lay(target)));
  const watch = new MutationObserver(() => {
    for (const box of document.querySelectorAll(".passes-box:not([data-watched])")) {
      box.dataset.watched = "yes";
      sizes.observe(box);
    }
  });
  watch.observe(document, { childList: true, subtree: true });
})();
