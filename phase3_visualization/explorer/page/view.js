// Small helpers for drawing, and the colours: those of the pictures, for a light ground and for a dark one.
//
// Everything a reader typed reaches the page as text (textContent), never as markup.
"use strict";

const View = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const NO_ROLE = "no role";
  const BLANK = "____"; // the gap: a hidden word, <mask>
  const [WHITE, BLACK] = ["#ffffff", "#000000"];
  const darkGround = matchMedia("(prefers-color-scheme: dark)");
  let colors; // {weights, roles}: each {light, dark}
  const useColors = (weights, roles) => (colors = { weights, roles });

  const byId = (id) => document.getElementById(id);
  const on = (id, event, action) => byId(id).addEventListener(event, action);
  function fixed(number, digits = 2) {
    if (Number.isNaN(number)) return "–"; // e.g. the entropy of a single word
    return Number.isFinite(number) ? number.toFixed(digits).replace(/^-(?=.*[1-9])/, "−").replace(/^-/, "") : "∞";
  }

  const capital = (text) => text[0].toUpperCase() + text.slice(1);
  const short = (number) => String(Number(number.toFixed(2))); // 4, not 4.00

  // how: "pushState" or "replaceState". A browser may refuse, as Safari does after 100 changes in 30 seconds: then the
  // page goes on, and its address stays behind.
  function remember(how, hash, kept = null) {
    try {
      history[how](kept, "", `#${hash}`);
    } catch (error) {
      if (error.name !== "SecurityError") throw error;
    }
  }

  // A button that sends the address, on a phone through its own sheet, elsewhere by the clipboard; none on a disk.
  function share(text) {
    if (!location.protocol.startsWith("http")) return [];
    const share = button(text, async () => {
      try {
        if (navigator.share && matchMedia("(pointer: coarse)").matches) {
          await navigator.share({ title: document.title, url: location.href });
        } else {
          await navigator.clipboard.writeText(location.href);
          share.textContent = "the address is copied";
        }
      } catch (error) {
        if (error.name !== "AbortError") share.textContent = "copy the address of this page";
      }
    });
    return [share];
  }

  const ground = () => (darkGround.matches ? "dark" : "light");

  // A weight of 0 is the ground of the page, light or dark.
  function weightColor(weight) {
    const ramp = colors.weights[ground()];
    return ramp[Math.round(weight * (ramp.length - 1))];
  }

  const rgb = (hex) => [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));

  // Relative luminance (WCAG 2), from 0 for black to 1 for white.
  function luminance(hex) {
    const linear = (x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
    const [red, green, blue] = rgb(hex).map((value) => linear(value / 255));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  }

  // White where it stands out 4.5 to 1, black elsewhere, where it does so, too. Grounds are few and come often.
  const onGround = new Map();
  function readable(ground) {
    if (!onGround.has(ground)) onGround.set(ground, luminance(ground) > 0.183 ? BLACK : WHITE);
    return onGround.get(ground);
  }

  // Heads are counted from 0, as in the lessons: "1.3" in a grid is "layer 1 head 3" in a sentence. They are coloured
  // by their role, at each stop of a training; heads[layer][head].role is null without.
  const headCalled = (name) => `layer ${name.replace(".", " head ")}`;
  const roleOf = ({ heads }, layer, head) => heads[layer][head].role ?? NO_ROLE;
  function roleColor(role) {
    const color = colors.roles[role] ?? "var(--no-role)";
    // On the dark page half-way to white: there it stands out at least 3 to 1.
    return ground() === "dark" && role in colors.roles ? `color-mix(in srgb, ${color}, white)` : color;
  }

  // element("p", {class: "quiet", title: "…"}, "text", child): strings become text, attributes stay attributes.
  function element(name, attributes = {}, ...children) {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (value !== false && value !== null && value !== undefined) node.setAttribute(key, value === true ? "" : value);
    }
    node.append(...children);
    return node;
  }

  function svg(name, attributes = {}) {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  }

  const indexOfLargest = (row) => row.indexOf(row.reduce((a, b) => Math.max(a, b)));

  // "{all} heads" -> "8 heads"
  const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => values[name]);

  function button(text, action, attributes = {}) {
    const node = element("button", { type: "button", ...attributes }, text);
    node.addEventListener("click", action);
    return node;
  }

  // A share as people say it: 0.394 -> "39 %".
  const percent = (share, digits = 0) => `${fixed(100 * share, digits)}\u00a0%`;

  // "39 → 6 %", or one number where both read alike.
  function change(before, after) {
    const [old, now] = [fixed(100 * before, 0), percent(after)];
    return percent(before) === now ? now : `${old} → ${now}`;
  }

  // What a head does, as one says it: "subject → verb" is "subjects look for their verb".
  const JOBS = {
    previous: "looks one word back", next: "looks one word ahead", self: "looks at the word itself",
    "first word": "looks at the first word", [NO_ROLE]: "no clear job",
  };
  function jobOf(role) {
    const [from, to] = role.split(" → ");
    if (from === "most") return `most words look at the ${to}`;
    if (to) return `${those(role)} look for their ${to === "determiner" ? "“the” or “some”" : to}`;
    const [, sign, places] = /offset ([+-])(\d)/.exec(role) ?? [];
    return JOBS[role] ?? `looks ${places} words ${sign === "+" ? "ahead" : "back"}`;
  }

  // The words that a job concerns: "subject → verb" is about subjects.
  function those(role) {
    const [from, to] = role.split(" → ");
    if (!to || from === "most") return "words";
    return from === "determiner" ? "words like “the”" : `${from}s`;
  }

  // One line: a name, a bar from 0 to 1, a number. color: a class of page.css; before: another share, as an outline;
  // mark: what stands after the name.
  function bar(name, share, number, { color = "own", before = null, mark = "" } = {}) {
    const track = element("span", { class: "track", "aria-hidden": "true" });
    const width = (part) => `${100 * Math.min(1, part)}%`;
    function add(kind, part, from) { // however small, it can be seen: only a share of 0 has none
      if (!part) return;
      const strip = element("i", { class: kind });
      strip.style.width = width(from);
      track.append(strip);
      if (from !== part) requestAnimationFrame(() => requestAnimationFrame(() => { strip.style.width = width(part); }));
    }
    add(color, share, before ?? share); // a bar that changed slides from where it was
    add("before", before, before);
    const called = element("span", { class: "name" }, name, mark && element("b", {}, ` ${mark}`));
    return element("div", { class: before === null ? "line" : "line changes" }, called, track,
      element("span", { class: "number" }, number));
  }

  // The likeliest words for one place, as lines; the true one is always among them and marked, and so is `also`, a
  // reader's own guess. Words of the right kind, kin, have its colour. after, before: shares of all words.
  const NEVER_SAID = ["<pad>", "<mask>", "<start>"];
  function guesses(after, vocabulary, truth, { count = 5, before = null, also = null, kin = [] } = {}) {
    const words = [...after.keys()].filter((word) => !NEVER_SAID.includes(vocabulary[word]));
    words.sort((a, b) => after[b] - after[a]);
    const shown = new Set([truth, also].filter((word) => word !== null));
    for (const word of words) if (shown.size < count) shown.add(word);
    return words.filter((word) => shown.has(word)).map((word) => bar(vocabulary[word], after[word],
      before ? change(before[word], after[word]) : percent(after[word]), {
        color: word === truth || kin.includes(vocabulary[word]) ? "own" : "other",
        before: before && before[word],
        mark: [word === truth && "✓", word === also && "you"].filter(Boolean).join(" "),
      }));
  }

  // A button that must not be used now keeps the focus: a disabled one would lose it to the page.
  function setUsable(button, usable) {
    button.setAttribute("aria-disabled", String(!usable));
  }
  const isUsable = (button) => button.getAttribute("aria-disabled") !== "true";

  return {
    NO_ROLE, BLANK, useColors, byId, on, fixed, capital, short, weightColor, rgb, readable, roleOf, roleColor, headCalled, element, svg,
    indexOfLargest, fill, button, percent, change, jobOf, those, bar, guesses, remember, share, setUsable, isUsable, darkGround,
  };
})();
