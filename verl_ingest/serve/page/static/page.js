// What the page of a step does beyond showing: keys, filter of the log lines, whole texts, copying, charts.
"use strict";

const read = (id) => JSON.parse(document.getElementById(id).textContent);

// Arrows lead to the step before and after, p and n to the anomalies.
document.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
  if (event.target.closest("input, textarea, select, pre, [contenteditable]")) return;
  const wanted = { ArrowLeft: 'a[rel="prev"]', ArrowRight: 'a[rel="next"]', p: '[data-key="p"]', n: '[data-key="n"]' };
  const link = wanted[event.key] && document.querySelector(wanted[event.key]);
  if (link) {
    event.preventDefault();
    link.click();
  }
});

// A link to a folded sample opens it.
function unfold() {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  if (target instanceof HTMLDetailsElement) target.open = true;
}
addEventListener("hashchange", unfold);
unfold();

// Log lines by level and rank; ranks stand as 0-3,7.
const filter = document.querySelector(".filter");
if (filter) {
  const lines = [...document.querySelectorAll(".loglines > li")];
  const among = (ranks, rank) =>
    ranks.split(",").some((part) => {
      const [low, high = low] = part.split("-").map(Number);
      return part !== "" && low <= rank && rank <= high;
    });
  const apply = () => {
    const severity = Number(filter.elements.severity.value);
    const rank = filter.elements.rank?.value ?? "";
    for (const line of lines) {
      line.hidden =
        Number(line.dataset.severity) < severity || (rank !== "" && !among(line.dataset.ranks, Number(rank)));
    }
    const shown = lines.filter((line) => !line.hidden).length;
    filter.querySelector("output").textContent = shown === lines.length ? "" : `${shown} of ${lines.length} lines`;
  };
  filter.addEventListener("input", apply);
  filter.addEventListener("submit", (event) => event.preventDefault());
  for (const button of filter.querySelectorAll("[data-rank]")) {
    button.addEventListener("click", () => {
      filter.elements.rank.value = filter.elements.rank.value === button.dataset.rank ? "" : button.dataset.rank;
      apply();
    });
  }
  filter.hidden = false;
  apply();
}

// Whole texts come on demand, in pieces that the browser lays out only when they are seen.
const PIECE = 50_000;
for (const link of document.querySelectorAll("a.whole")) {
  link.addEventListener("click", async (event) => {
    event.preventDefault();
    link.textContent = "Loading …";
    try {
      const answer = await fetch(link.href);
      if (!answer.ok) throw new Error(`the service answered ${answer.status}`);
      const text = (await answer.json())[link.dataset.part] ?? "";
      const block = link.closest("p").previousElementSibling;
      block.replaceChildren();
      for (let start = 0; start < text.length; start += PIECE) {
        const piece = document.createElement("div");
        piece.className = "piece";
        piece.textContent = text.slice(start, start + PIECE);
        block.append(piece);
      }
      link.closest("p").remove();
    } catch (error) {
      link.textContent = `Could not load the text (${error.message}); try again`;
    }
  });
}

function offerCopy(button, text) {
  if (!navigator.clipboard) return;
  const words = button.textContent;
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text());
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = words), 2_000);
  });
}
const copy = document.getElementById("copy");
if (copy) {
  const late = () => [...document.querySelectorAll("#began p, #checkpoint p:not(.resume), .resume code")];
  const whole = (markdown) => markdown.replace(/^<(?=\/)/m, `<${location.origin}`); // where the service does not know its name
  const text = () => [whole(read("markdown")), ...late().map((part) => `${part.textContent.trim()}\n`)].join("\n");
  offerCopy(copy, text);
}

// When the trouble began takes long to find: it comes after the page, as parts that name where they go.
const jumps = document.querySelector("[data-episode]");
if (jumps) {
  const began = document.getElementById("began");
  began.textContent = "Looking for when it began …";
  fetch(jumps.dataset.episode)
    .then((answer) => (answer.ok ? answer.text() : ""))
    .then((html) => {
      began.replaceChildren();
      for (const part of new DOMParser().parseFromString(html, "text/html").querySelectorAll("[data-into]")) {
        document.getElementById(part.dataset.into)?.replaceChildren(...part.children);
      }
      for (const button of document.querySelectorAll(".resume .copy")) {
        offerCopy(button, () => button.previousElementSibling.textContent);
      }
    })
    .catch(() => began.replaceChildren()); // the page is whole without
}

// The charts and their library load when they come near the screen.
const charts = document.querySelector(".charts");
if (charts) {
  const load = (address) =>
    new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = address;
      script.onload = resolve;
      script.onerror = reject;
      document.head.append(script);
    });
  const observer = new IntersectionObserver(
    async ([entry]) => {
      if (!entry.isIntersecting) return;
      observer.disconnect();
      try {
        await load(charts.dataset.library);
        await load(charts.dataset.drawer);
      } catch {
        charts.textContent = "The charts could not be loaded; reload the page.";
      }
    },
    { rootMargin: "400px" },
  );
  observer.observe(charts);
}
