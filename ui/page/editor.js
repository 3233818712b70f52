// The SQL editor: names of the schema and keywords are offered while one types, and the line of an error is marked.
// The words before the caret are read from, and written into, the page's own selection: nothing of the editor's inside is used.
(() => {
  const KEYWORDS = ("SELECT FROM WHERE GROUP BY ORDER HAVING LIMIT OFFSET JOIN LEFT RIGHT FULL INNER OUTER CROSS ON USING AS AND OR NOT IN " +
    "EXISTS BETWEEN LIKE IS NULL DISTINCT CASE WHEN THEN ELSE END UNION ALL EXCEPT INTERSECT WITH ASC DESC NULLS FIRST LAST OVER " +
    "PARTITION COUNT SUM AVG MIN MAX CAST COALESCE ROUND TRUE FALSE").split(" ");
  const MOST = 8;
  const box = document.createElement("ul");
  Object.assign(box, { id: "completions", className: "completions", role: "listbox", hidden: true });
  box.setAttribute("aria-label", "Names and keywords that fit");
  let offered = [], chosen = 0, word = "";

  const editor = () => document.querySelector("#sql .cm-content");
  const text = () => [...editor().querySelectorAll(".cm-line")].map((line) => line.textContent).join("\n");

  // Tables with their columns, as the sidebar shows them.
  const schema = () => [...document.querySelectorAll("#schema details")].map((table) => ({
    name: table.querySelector("summary code").textContent,
    columns: [...table.querySelectorAll("li code")].map((column) => column.textContent),
  }));

  const quoted = (name) => {
    const mark = /^(mysql|mariadb)/.test(document.querySelector("#schema .source small")?.textContent ?? "") ? "`" : '"';
    return /^[a-z_][a-z0-9_]*$/.test(name) && !KEYWORDS.includes(name.toUpperCase()) ? name : mark + name.replaceAll(mark, mark + mark) + mark;
  };

  // What stands before the caret in its line; nothing inside a text or a comment.
  const before = () => {
    const { anchorNode, anchorOffset, isCollapsed } = getSelection();
    const line = (anchorNode?.nodeType === 1 ? anchorNode : anchorNode?.parentElement)?.closest("#sql .cm-line");
    if (!line || !isCollapsed) return "'";
    const range = document.createRange();
    range.setStart(line, 0);
    range.setEnd(anchorNode, anchorOffset);
    return range.toString();
  };

  // [what is written, what it is], best first: after "name." that table's columns, after FROM and JOIN tables, otherwise columns of
  // the tables that the statement names, tables, keywords, and the columns of the other tables.
  const fitting = (head, all) => {
    const tables = schema(), owner = head.match(/([\w"`]+)\.\w*$/)?.[1].replace(/["`]/g, "").toLowerCase();
    const aliases = Object.fromEntries([...all.matchAll(/\b(?:from|join)\s+(["`]?)([^\s"`,();]+)\1(?:\s+as)?\s+(\w+)/gi)]
      .map(([, , name, alias]) => [alias.toLowerCase(), name.toLowerCase()]));
    const named = (table) => new RegExp(`(^|[^\\w])${table.name.replace(/\W/g, "\\$&")}([^\\w]|$)`, "i").test(all);
    const columns = (some) => some.flatMap((table) => table.columns.map((name) => [quoted(name), `column of ${table.name}`]));
    const names = tables.map((table) => [quoted(table.name), "table"]);
    if (owner) return columns(tables.filter((table) => table.name.toLowerCase() === (aliases[owner] ?? owner)));
    if (/\b(from|join)\s+\w*$/i.test(head)) return names;
    const words = KEYWORDS.map((key) => [word && word === word.toLowerCase() ? key.toLowerCase() : key, "keyword"]);
    return [...columns(tables.filter(named)), ...names, ...words, ...columns(tables.filter((table) => !named(table)))];
  };

  const close = () => {
    box.hidden = true;
    ["aria-activedescendant", "aria-controls"].forEach((name) => editor()?.removeAttribute(name));
  };

  const choose = (place) => {
    chosen = (place + offered.length) % offered.length;
    [...box.children].forEach((option, at) => option.setAttribute("aria-selected", at === chosen));
    box.children[chosen].scrollIntoView({ block: "nearest" });
    editor().setAttribute("aria-controls", box.id);
    editor().setAttribute("aria-activedescendant", box.children[chosen].id);
  };

  // Offer what begins as the word before the caret does; `all`: without a word, too.
  const offer = (all = false) => {
    const head = before();
    word = head.match(/\w*$/)[0];
    const silent = head.split("'").length % 2 === 0 || head.includes("--") || /(^|[^\w.])\d\w*$/.test(head);
    const begins = ([name]) => name.replace(/^["`]/, "").toLowerCase().startsWith(word.toLowerCase());
    const found = silent || !(word || all || head.endsWith(".")) ? [] : fitting(head, text()).filter(begins);
    offered = found.filter(([name], at) => found.findIndex(([other]) => other === name) === at).slice(0, MOST);
    if (!offered.length || offered.some(([name]) => name.toLowerCase() === word.toLowerCase())) return close();
    box.replaceChildren(...offered.map(([name, kind], at) => {
      const option = Object.assign(document.createElement("li"), { id: `completion-${at}`, role: "option", textContent: name });
      option.append(Object.assign(document.createElement("small"), { textContent: kind }));
      return option;
    }));
    const caret = getSelection().getRangeAt(0).getBoundingClientRect(), line = editor().getBoundingClientRect();
    document.body.append(box);
    box.hidden = false;
    box.style.left = `${Math.max(4, Math.min(caret.left || line.left, innerWidth - box.offsetWidth - 4))}px`;
    box.style.top = `${(caret.bottom || line.top + 20) + 4}px`;
    choose(0);
  };

  const accept = () => {
    const [name] = offered[chosen];
    for (let left = word.length; left > 0; left--) getSelection().modify("extend", "backward", "character");
    close();
    document.execCommand("insertText", false, name);
  };

  const KEYS = { ArrowDown: () => choose(chosen + 1), ArrowUp: () => choose(chosen - 1), Enter: accept, Escape: close };
  document.addEventListener("keydown", (event) => {
    if (!event.target.closest("#sql .cm-content") || event.isComposing) return;
    const asks = event.key === " " && event.ctrlKey;
    const act = asks ? () => offer(true) : !box.hidden && !event.ctrlKey && !event.metaKey && KEYS[event.key];
    if (!act) return event.key.length > 1 && event.key !== "Backspace" && !/^(Shift|Control|Alt|Meta)/.test(event.key) && close();
    event.preventDefault();
    event.stopImmediatePropagation();
    act();
  }, { capture: true });
  document.addEventListener("input", ({ target }) => target.closest?.("#sql .cm-content") && setTimeout(offer));
  document.addEventListener("focusout", close);
  box.addEventListener("mousedown", (event) => {
    const option = event.target.closest("li");
    event.preventDefault(); // the editor keeps the focus
    if (option) choose([...box.children].indexOf(option)), accept();
  });
  document.addEventListener("scroll", ({ target }) => target !== box && close(), { capture: true });

  // A new query begins in the editor.
  const focus = (tries = 30) => {
    if (editor()?.dataset.language && editor().checkVisibility()) return editor().focus();
    if (tries) setTimeout(() => focus(tries - 1), 100);
  };
  document.addEventListener("click", ({ target }) => target.closest("#new-query") && setTimeout(focus, 300));

  // The line of an error is marked until something is written.
  const marked = document.createElement("style");
  document.addEventListener("input", ({ target }) => { if (target.closest?.("#sql")) marked.textContent = ""; });
  new MutationObserver(() => {
    const line = Number(document.querySelector("#trouble")?.innerText.match(/\nLine (\d+):/)?.[1] ?? 0);
    const rule = line && `#sql .cm-line:nth-child(${line}) { background: color-mix(in srgb, var(--lost) 18%, transparent); }`;
    if (marked.dataset.line !== String(line)) Object.assign(marked, { textContent: rule || "" }).dataset.line = line;
    if (!marked.isConnected) document.head?.append(marked);
  }).observe(document, { childList: true, subtree: true });
})();
