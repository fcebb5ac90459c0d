// Small helpers for drawing, and the colours: those of the pictures, for a light ground and for a dark one.
//
// Everything a reader typed reaches the page as text (textContent), never as markup.
"use strict";

const View = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const NO_ROLE = "no role";
  const [WHITE, BLACK] = ["#ffffff", "#000000"];
  const darkGround = matchMedia("(prefers-color-scheme: dark)");
  let colors = { light: [], dark: [], roles: {} };
  const useColors = (light, dark, roles) => (colors = { light, dark, roles });

  const byId = (id) => document.getElementById(id);
  const on = (id, event, action) => byId(id).addEventListener(event, action);
  function fixed(number, digits = 2) {
    if (Number.isNaN(number)) return "–"; // e.g. the entropy of a single word
    return Number.isFinite(number) ? number.toFixed(digits).replace(/^-(?=.*[1-9])/, "−").replace(/^-/, "") : "∞";
  }

  // A weight of 0 is the ground of the page, light or dark.
  function weightColor(weight) {
    const ramp = darkGround.matches ? colors.dark : colors.light;
    return ramp[Math.round(weight * (ramp.length - 1))];
  }

  const rgb = (hex) => [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));

  // Relative luminance (WCAG 2), from 0 for black to 1 for white.
  function luminance(hex) {
    const linear = (x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
    const [red, green, blue] = rgb(hex).map((value) => linear(value / 255));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  }

  // Black or white, whichever stands out more: at least 4.5 to 1 on every ground. Grounds are few and come often.
  const onGround = new Map();
  function readable(ground) {
    if (!onGround.has(ground)) onGround.set(ground, luminance(ground) > 0.179 ? BLACK : WHITE);
    return onGround.get(ground);
  }

  // Heads are named and coloured by their role; a head that passes no rule has none, and a model of next words knows no
  // such rules: heads[layer][head] is {role, rule, share, needed}, or heads is null.
  const place = (layer, head) => `layer ${layer}, head ${head}`;
  const roleOf = (model, layer, head) => (model.heads ? model.heads[layer][head].role ?? NO_ROLE : place(layer, head));
  const roleColor = (role) => colors.roles[role] ?? "var(--no-role)";
  const headName = (model, layer, head) =>
    model.heads ? `${roleOf(model, layer, head)} (${place(layer, head)})` : place(layer, head);

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

  // ["the", "cat"] -> ["0 the", "1 cat"]: repeated words stay apart.
  const tokenLabels = (words) => words.map((word, position) => `${position} ${word}`);

  // A button that must not be used now keeps the focus: a disabled one would lose it to the page.
  function setUsable(button, usable) {
    button.setAttribute("aria-disabled", String(!usable));
  }
  const isUsable = (button) => button.getAttribute("aria-disabled") !== "true";

  return {
    NO_ROLE, useColors, byId, on, fixed, weightColor, rgb, readable, roleOf, roleColor, headName, place, element, svg,
    tokenLabels, setUsable, isUsable, darkGround,
  };
})();
