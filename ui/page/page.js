// Small conveniences of the page: replaying rounds, filtering the schema, copying names, light and dark.
(() => {
  const show = (view, count) => {
    view.querySelectorAll("[data-round]").forEach((part) => {
      part.classList.toggle("later", Number(part.dataset.round) > count);
      part.classList.toggle("now", Number(part.dataset.round) === count && view.dataset.playing === "yes");
    });
    const seek = view.querySelector("[data-seek]");
    seek.value = count;
    view.querySelector("output").textContent = count;
  };

  const label = (view, playing) => {
    view.dataset.playing = playing ? "yes" : "no";
    view.querySelector("[data-play]").textContent = playing ? "❚❚ Pause" : "▶ Replay";
  };

  const play = (view) => {
    if (view.dataset.playing === "yes") return label(view, false);
    const seek = view.querySelector("[data-seek]");
    const last = Number(seek.max);
    let count = Number(seek.value) >= last ? 0 : Number(seek.value);
    label(view, true);
    const next = () => {
      if (view.dataset.playing !== "yes" || !view.isConnected) return;
      show(view, count);
      if (count >= last) return label(view, false), show(view, last);
      count += 1;
      const round = view.querySelector(`li[data-round="${count}"]`);
      setTimeout(next, Math.min(Math.max(Number(round?.dataset.showMs ?? 200), 60), 1500));
    };
    next();
  };

  const filter = (box) => {
    const wanted = box.value.trim().toLowerCase();
    box.closest("[data-schema]").querySelectorAll("details").forEach((table) => {
      table.hidden = !table.dataset.words.includes(wanted);
    });
  };

  const copy = async (button) => {
    await navigator.clipboard?.writeText(button.dataset.copy);
    button.classList.add("copied");
    setTimeout(() => button.classList.remove("copied"), 900);
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if ("play" in button.dataset) play(button.closest("[data-replay]"));
    if ("copy" in button.dataset) copy(button);
    if ("themeSwitch" in button.dataset) {
      const dark = document.body.classList.toggle("dark");
      localStorage.setItem("sqlagent-theme", dark ? "dark" : "light");
    }
  });

  document.addEventListener("input", (event) => {
    const box = event.target;
    if (box.matches("[data-seek]")) {
      const view = box.closest("[data-replay]");
      label(view, false);
      show(view, Number(box.value));
    }
    if (box.matches("[data-filter]")) filter(box);
  });

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
