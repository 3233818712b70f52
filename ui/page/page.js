// Small conveniences of the page: replaying rounds, filtering the schema, copying names, light and dark.
(() => {
  // A replay shows each pass twice: its guesses, then what the model made of them. Beside it runs plain decoding's track.
  const GUESSED = ".guess, .number, .bracket, .passes small, .own:has(s), .forced:has(s), li"; // what stands before the model has checked
  const show = (view, count, phase = "checked") => {
    view.dataset.phase = phase;
    const playing = view.dataset.playing === "yes";
    view.querySelectorAll("[data-round]").forEach((part) => {
      const round = Number(part.dataset.round);
      part.classList.toggle("later", round > count || (round === count && phase === "guessing" && !part.matches(GUESSED)));
      part.classList.toggle("now", round === count && playing);
    });
    view.querySelector("[data-seek]").value = count;
    view.querySelector("[data-count]").textContent = count;
    const story = view.querySelector(`li[data-round="${count}"]`)?.dataset[phase];
    if (story) view.querySelector("[data-history]").textContent = story;
    const box = view.querySelector(".passes-box");
    const now = view.querySelector(".line .own.now") ?? view.querySelector(".line .guess.now");
    if (now) box.scrollTo({ top: now.offsetTop - box.clientHeight * 0.7 });
  };

  const track = (view, ms) => {
    const tracks = view.querySelector("[data-plain]");
    const rounds = [...view.querySelectorAll("li[data-round]")];
    const move = (name, share, count) => {
      const bar = tracks.querySelector(`[data-track="${name}"]`);
      const told = tracks.querySelector(`[data-count-of="${name}"]`);
      bar.dataset.full ??= parseFloat(bar.style.width); // both tracks are on one scale of time
      told.dataset.final ??= told.textContent;
      bar.style.width = `${bar.dataset.full * Math.min(share, 1)}%`;
      told.textContent = share >= 1 ? told.dataset.final : count;
    };
    const done = rounds.filter((round) => Number(round.dataset.endMs) <= ms).length;
    const plain = Math.floor(ms / Number(tracks.dataset.plainMs));
    move("ours", done / rounds.length, done);
    move("plain", plain / Number(tracks.dataset.plain), plain);
    const over = plain >= Number(tracks.dataset.plain) && done >= rounds.length;
    tracks.classList.toggle("running", !over);
    return over;
  };

  const label = (view, playing) => {
    view.dataset.playing = playing ? "yes" : "no";
    view.querySelector("[data-play]").textContent = playing ? "❚❚ Pause" : "▶ Replay";
  };

  const play = (view) => {
    if (view.dataset.playing === "yes") return label(view, false);
    const seek = view.querySelector("[data-seek]");
    const ends = [0, ...[...view.querySelectorAll("li[data-round]")].map((round) => Number(round.dataset.endMs))];
    const first = Number(seek.value) >= Number(seek.max) ? 0 : Number(seek.value);
    const began = performance.now() - ends[Math.min(first, ends.length - 1)];
    label(view, true);
    const frame = () => {
      if (view.dataset.playing !== "yes" || !view.isConnected) return;
      const ms = performance.now() - began;
      const count = ends.filter((end, place) => place > 0 && ends[place - 1] <= ms).length;
      const middle = (ends[count - 1] + ends[count]) / 2;
      const state = `${count} ${count > 0 && ms < middle ? "guessing" : "checked"}`;
      if (state !== view.dataset.state) {
        view.dataset.state = state;
        show(view, count, state.split(" ")[1]);
      }
      if (track(view, ms)) return label(view, false), show(view, Number(seek.max));
      requestAnimationFrame(frame);
    };
    frame();
  };

  // The history of a token of the text, which may be clicked in the text or in the grid.
  const tell = (clicked) => {
    const view = clicked.closest("[data-replay]");
    const token = view?.querySelector(`.tokens [data-at="${clicked.dataset.at}"]`);
    if (!token) return;
    view.querySelector("[data-history]").textContent = token.dataset.told;
    view.querySelectorAll(".chosen").forEach((part) => part.classList.remove("chosen"));
    view.querySelectorAll(`[data-at="${clicked.dataset.at}"]:not(.bracket)`).forEach((part) => part.classList.add("chosen"));
  };

  const filter = (box) => {
    const wanted = box.value.trim().toLowerCase();
    const tables = [...box.closest("[data-schema]").querySelectorAll("details")];
    tables.forEach((table) => { table.hidden = !table.dataset.words.includes(wanted); });
    box.closest("[data-schema]").querySelector("[data-no-hit]").hidden = tables.some((table) => !table.hidden);
  };

  const copy = async (button) => {
    await navigator.clipboard?.writeText(button.dataset.copy);
    button.classList.add("copied");
    setTimeout(() => button.classList.remove("copied"), 900);
  };

  // What a card shows, for a spreadsheet or an editor: its rows with their headings, tab by tab, or its SQL.
  const copyCard = async (button) => {
    const card = button.closest(".card");
    const cells = (row) => [...row.cells].filter((cell) => !cell.querySelector(".bar")).map((cell) => cell.innerText.trim());
    const rows = [...card.querySelectorAll(".pane.table tr")].map((row) => cells(row).join("\t").trimEnd()).join("\n");
    const asSql = card.querySelector(".of-sql:checked") || !rows;
    await navigator.clipboard?.writeText(asSql ? card.querySelector(".pane.sql code").textContent : rows);
    button.classList.add("copied");
    setTimeout(() => button.classList.remove("copied"), 900);
  };

  // The rows of a card's answer stand in the panel, since the click chose it there; they are exported from there.
  const exportCard = () => {
    [...document.querySelectorAll("#tabs button[role=tab]")].find((tab) => tab.textContent.trim() === "Result")?.click();
    const button = document.querySelector("#export");
    button?.scrollIntoView({ block: "center" });
    button?.focus({ focusVisible: true });
  };

  document.addEventListener("click", (event) => {
    const token = event.target.closest("[data-told], .passes span[data-at]");
    if (token) tell(token);
    const button = event.target.closest("button");
    if (!button) return;
    if (button.role === "tab") setTimeout(() => window.dispatchEvent(new Event("resize")), 60); // charts fit their width
    if ("play" in button.dataset) play(button.closest("[data-replay]"));
    if ("copy" in button.dataset) copy(button);
    if (button.classList.contains("copy-card")) copyCard(button);
    if (button.classList.contains("export-card")) exportCard();
    if ("expand" in button.dataset) button.closest("[data-replay]").classList.toggle("whole");
    if ("themeSwitch" in button.dataset) {
      const dark = document.body.classList.toggle("dark");
      localStorage.setItem("sqlagent-theme", dark ? "dark" : "light");
    }
  });

  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") document.querySelector(".decoding.whole")?.classList.remove("whole");
    const cancel = document.querySelector("#incoming-cancel");
    if (event.key === "Escape" && cancel?.checkVisibility() && !event.target.closest("[role=listbox], input")) cancel.click();
    if (["Enter", " "].includes(event.key) && event.target.matches("[data-told]")) event.preventDefault(), tell(event.target);
  });

  // Escape leaves a table that fills the window by the table's own button: Gradio's way left all of its rows unrolled.
  document.addEventListener("keydown", (event) => {
    const exit = event.key === "Escape" && document.querySelector('#panel [aria-label="Exit fullscreen mode"]');
    if (!exit) return;
    event.preventDefault();
    event.stopPropagation();
    exit.click();
  }, { capture: true });

  // Before the editor sees them: Tab goes on to the next control, Ctrl+Enter runs its SQL.
  document.addEventListener("keydown", (event) => {
    if (event.key === "Tab" && event.target.closest("#sql")) return event.stopPropagation();
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || !event.target.closest("#sql")) return;
    event.preventDefault();
    event.stopPropagation();
    document.querySelector("#run")?.click();
  }, { capture: true });

  document.addEventListener("input", (event) => {
    const box = event.target;
    if (box.matches("[data-seek]")) {
      const view = box.closest("[data-replay]");
      label(view, false);
      show(view, Number(box.value));
      track(view, Number(view.querySelector(`li[data-round="${box.value}"]`)?.dataset.endMs ?? 0));
    }
    if (box.matches("[data-filter]")) filter(box);
  });

  // Names for what Gradio leaves nameless to those who do not see it.
  const NAMES = [
    ["#question [data-testid=submit-button]", "Send the question"],
    ["#question [data-testid=stop-button]", "Stop the answer"],
    ["a[download]", "Download"],
    ["#incoming", "How the file is read"],
  ];
  const OURS = [
    ["#sql .cm-content", "SQL editor: Tab leaves it, Ctrl+Enter runs it, Ctrl+Space offers names"],
    ["#table [role=grid]", "Rows of the result: a heading sorts them"],
  ];
  const name = () => {
    document.querySelector("#incoming")?.setAttribute("role", "dialog");
    OURS.forEach(([part, told]) => {
      const named = document.querySelector(part);
      if (named && named.ariaLabel !== told) named.ariaLabel = told; // the same again would call this again
    });
    NAMES.forEach(([part, told]) => document.querySelectorAll(`${part}:not([aria-label]), ${part}[aria-label=""]`)
    .forEach((each) => each.innerText.trim() || each.setAttribute("aria-label", told)));
  };
  let naming = 0;
  new MutationObserver(() => { naming ||= requestAnimationFrame(() => { naming = 0; name(); }); })
    .observe(document, { childList: true, subtree: true, attributeFilter: ["aria-label"] });

  // Once the page stands: the chosen scheme instead of the system's; on a phone the open sidebar would cover the chat.
  const sidebar = new MutationObserver(() => {
    const toggle = document.querySelector(".sidebar.open .toggle-button");
    if (!toggle) return;
    sidebar.disconnect();
    const chosen = localStorage.getItem("sqlagent-theme");
    if (chosen) document.body.classList.toggle("dark", chosen === "dark");
    if (window.innerWidth < 768) setTimeout(() => toggle.click(), 50);
  });
  sidebar.observe(document, { childList: true, subtree: true, attributes: true });
})();

// Clicks inside an answer go to the server, and the address names the conversation that is shown, so that Back, a reload and a
// bookmark find it; #3 is its third question.
(() => {
  const tell = (detail) => document.dispatchEvent(new CustomEvent("sqlagent:do", { detail }));
  const inAddress = () => new URLSearchParams(location.search).get("chat") ?? "";

  const toAnswer = (tries = 30) => {
    const question = document.querySelector(`#edit-${Number(location.hash.slice(1)) - 1}`);
    if (question) return question.closest(".message-row, .message")?.scrollIntoView();
    if (tries && location.hash) setTimeout(() => toAnswer(tries - 1), 100);
  };

  // When an answer is there, its question stands at the top: of a long one Gradio would show the end.
  let last = -1;
  new MutationObserver(() => {
    const newest = [...document.querySelectorAll("#chat .edit")].at(-1);
    const place = newest ? Number(newest.id.slice(5)) : -1;
    if (place > last && !location.hash) setTimeout(() => newest.closest(".message-row, .message")?.scrollIntoView(), 350);
    last = place;
  }).observe(document, { childList: true, subtree: true });

  // On a phone the sidebar lies over the chat; what was chosen there is shown below it.
  document.addEventListener("click", (event) => {
    if (window.innerWidth >= 768 || !event.target.closest("#incoming-alone, #incoming-beside, #conversations label, #new, #new-query")) return;
    setTimeout(() => document.querySelector(".sidebar.open .toggle-button")?.click(), 400);
  });

  let first = true;
  document.addEventListener("sqlagent:shows", ({ detail }) => {
    const address = new URL(location);
    const chat = detail === "new" ? "" : detail;
    if (chat) address.searchParams.set("chat", chat);
    else address.searchParams.delete("chat");
    if (chat !== inAddress()) {
      address.hash = "";
      history[first ? "replaceState" : "pushState"]({}, "", address);
    }
    first = false;
    toAnswer();
  });
  window.addEventListener("popstate", () => { tell({ act: "open", chat: inAddress() }); toAnswer(); });

  const copyLink = async (button, turn) => {
    const address = new URL(location);
    address.hash = `#${turn + 1}`;
    await navigator.clipboard?.writeText(address.href);
    button.classList.add("copied");
    setTimeout(() => button.classList.remove("copied"), 900);
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("#chat button[id]");
    const [, act, turn, place] = button?.id.match(/^(say|edit|star|again|link)-(\d+)(?:-(\d+))?$/) ?? [];
    if (!act) return;
    event.stopPropagation(); // else the click chooses the answer as well
    if (act === "link") return copyLink(button, Number(turn));
    tell({ act, turn: Number(turn), place: Number(place ?? 0) });
    const asks = act === "edit" || (["say", "again"].includes(act) && matchMedia("(pointer: fine)").matches); // no keyboard over a phone's answer
    if (asks) document.querySelector("#question textarea")?.focus();
  }, { capture: true });

  // The question is in sight at once: on a busy machine the server's own message takes a while.
  const sent = document.createElement("div");
  sent.className = "sending";
  const send = (text) => {
    if (!text.trim()) return;
    sent.textContent = text.trim();
    document.querySelector("#talk")?.append(sent);
  };
  document.addEventListener("keydown", ({ key, shiftKey, isComposing, target }) => {
    if (key === "Enter" && !shiftKey && !isComposing && target.matches("#question textarea")) send(target.value);
  }, { capture: true });
  document.addEventListener("click", ({ target }) => {
    if (target.closest("#question [data-testid=submit-button]")) send(document.querySelector("#question textarea").value);
  }, { capture: true });
  document.addEventListener("input", ({ target }) => { if (target.closest("#question")) sent.remove(); });
  const questions = () => document.querySelectorAll("#chat .said").length;
  let asked = 0;
  new MutationObserver(() => {
    if (questions() !== asked || document.querySelector(".toast-body, #question [data-testid=stop-button]")) sent.remove();
    asked = questions();
  }).observe(document, { childList: true, subtree: true });

  document.addEventListener("keydown", (event) => {
    const editing = document.querySelector("#notice")?.innerText.startsWith("✎");
    if (event.key === "Escape" && editing && event.target.closest("#question")) tell({ act: "leave" });
  });
})();
