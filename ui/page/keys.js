// By keyboard: a row of tabs, and of the table's headings, is one tab stop that arrows move along; a heading sorts; and the focus
// goes back to what is drawn anew.
(() => {
  const ROWS = ["#side [role=tab]", "#tabs [role=tab]", "#table th[data-heading]"];
  const all = (part) => [...document.querySelectorAll(part)];
  const put = (each, name, value) => each.getAttribute(name) === value || each.setAttribute(name, value);

  // The server says by a class of the table which column its rows are sorted by.
  const order = () => {
    const [, column, way] = document.querySelector("#table")?.className.match(/\bsorted-(\d+)-(\w+)/) ?? [];
    all("#table th[data-heading]").forEach((each) => put(each, "aria-sort", each.dataset.heading === column ? way : "none"));
  };

  const stops = () => ROWS.forEach((part) => {
    const row = all(part);
    const stop = row.find((each) => each === document.activeElement || each.matches("[aria-selected=true], [aria-sort$=scending]")) ?? row[0];
    row.forEach((each) => put(each, "tabindex", each === stop ? "0" : "-1"));
  });

  const sort = (heading) => document.dispatchEvent(new CustomEvent("sqlagent:sort", {
    detail: { column: Number(heading.dataset.heading), descending: heading.getAttribute("aria-sort") === "ascending" },
  }));

  document.addEventListener("keydown", (event) => {
    const part = ROWS.find((each) => event.target.matches?.(each));
    if (!part || event.ctrlKey || event.metaKey || event.altKey) return;
    const row = all(part), at = row.indexOf(event.target);
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: -1 }[event.key];
    const sorts = ["Enter", " "].includes(event.key) && event.target.dataset.heading;
    if (next === undefined && !sorts) return;
    event.preventDefault();
    event.stopPropagation();
    if (sorts) return sort(event.target);
    const chosen = row.at(next % row.length);
    chosen.focus();
    if (chosen.matches("[role=tab]")) chosen.click();
    stops();
  }, { capture: true });

  document.addEventListener("click", (event) => {
    const heading = event.target.closest("#table th[data-heading]");
    if (!heading) return;
    event.stopPropagation(); // Gradio would select the column
    heading.focus();
    sort(heading);
  }, { capture: true });

  let held = null, found = ""; // what has the focus, and how to find what takes its place
  document.addEventListener("pointerdown", () => { held = null; }, { capture: true });
  document.addEventListener("focusin", ({ target }) => {
    held = target;
    found = target.dataset.heading ? `#table th[data-heading="${target.dataset.heading}"]` : target.id ? `[id="${target.id}"]` : "";
  });
  const hold = () => {
    if (!held || held.isConnected || !found || document.activeElement !== document.body) return;
    document.querySelector(found)?.focus({ preventScroll: true });
  };

  let due = 0;
  new MutationObserver(() => { due ||= requestAnimationFrame(() => { due = 0; order(); stops(); hold(); }); })
    .observe(document, { childList: true, subtree: true, attributeFilter: ["aria-selected", "class"] });
})();
