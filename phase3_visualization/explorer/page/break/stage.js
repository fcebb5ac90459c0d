// What the wagers are drawn with: texts, rows of symbols, a map, intervals on an axis.
"use strict";

const Stage = (() => {
  const { button, element, fixed } = View;
  const mean = (numbers) => numbers.reduce((a, b) => a + b, 0) / numbers.length;
  const loss = (probability) => -Math.log(probability); // what a guess costs when this was the truth, in nats
  const quiet = (...content) => element("p", { class: "quiet" }, ...content);

  // Something that buttons draw again. steps: what a button says -> what is drawn next, from what is drawn now.
  function turns(first, draw, steps) {
    const stage = element("div");
    let now = first;
    const show = () => stage.replaceChildren(...draw(now));
    const buttons = Object.entries(steps).map(([text, next]) => button(text, () => {
      now = next(now);
      show();
    }));
    show();
    return [element("p", { class: "row" }, ...buttons), stage];
  }

  // One of the models, or one of the ways to run a model: what it is called, and what it does.
  const pane = (title, ...content) =>
    element("div", { class: "pane" }, element("h3", {}, title), element("div", {}, ...content));
  const panes = (...each) => element("div", { class: "panes" }, ...each);

  const letter = (symbol) => (symbol === null ? "·" : String.fromCharCode("a".charCodeAt(0) + symbol));

  // A row of symbols, as letters. name: what the row is. right: for each symbol true, false, "needed" or nothing.
  function cells(name, symbols, right = []) {
    const marks = symbols.map((_, i) => ({ true: "right", false: "wrong", needed: "needed" })[right[i]] ?? "");
    const spoken = symbols.map((symbol, i) => `${letter(symbol)} ${marks[i]}`.trim()).join(", ");
    const boxes = symbols.map((symbol, i) => element("span", { class: marks[i] }, letter(symbol)));
    const strip = element("span", { class: "cells", role: "img", "aria-label": `${name}: ${spoken}` }, ...boxes);
    return element("div", { class: "symbols" }, element("span", { class: "name" }, name), strip);
  }

  // The weights of one head, queries down, keys across. isHidden(query, key); isOutlined: where it has to look.
  function map(weights, label, isHidden = () => false, isOutlined = () => false) {
    const canvas = element("canvas", { class: "one-map", role: "img", "aria-label": label });
    Maps.drawMap(canvas, weights, isHidden, isOutlined);
    return canvas;
  }

  // A part of an axis from 0 to 1, on a track: a band, a whisker, a tick, or, where low is high, a mark.
  function onTrack(track, kind, [low, high], text = "") {
    const part = element("i", { class: kind }, text);
    Object.assign(part.style, { left: `${100 * low}%`, width: `${100 * (high - low)}%` });
    track.append(part);
  }

  // What decided a wager: the bands of its choices, signed as they are, and what ten trainings gave, as a whisker.
  function decision({ interval, right, decides, beside = "", ...wager }, chosen) {
    const { bands, axis, digits = 2 } = decides ?? wager;
    const ends = bands.map((band) => band.map(Number));
    const known = ends.flat().filter(Number.isFinite);
    const top = Math.max(...known, 1.1 * interval[1]);
    const onAxis = (numbers) => numbers.map((number) => Math.min(number, top) / top);
    const bandOf = (choice) => Math.min(choice, ends.length - 1); // several choices may share the last band
    const [track, ticks] = ["track", "track ticks"].map((kind) => element("div", { class: kind }));
    ends.forEach((band, i) => {
      const [kind, sign] = i === bandOf(right) ? ["won", "✓"] : i === bandOf(chosen) ? ["lost", "✗"] : ["", ""];
      onTrack(track, `band ${kind}`, onAxis(band), sign);
    });
    onTrack(track, "whisker", onAxis(interval));
    const named = [0, ...ends[bandOf(right)], Math.max(...known)].filter((number, i, all) =>
      Number.isFinite(number) && number !== all[i + 1] && (i > 0 || all[1] > top / 8)); // none on top of another
    for (const number of named) onTrack(ticks, "tick", onAxis([number, number]), fixed(number, digits));
    const caption = `${axis}: between ${interval.map((end) => fixed(end, digits)).join(" and ")} in ten trainings.`;
    const drawn = element("div", { class: "decision", role: "img", "aria-label": caption }, track, ticks);
    return element("details", {}, element("summary", {}, "in other trainings"), quiet(`${caption} ${beside}`), drawn);
  }

  // What this run shows; where it does not show what the record says, that comes first.
  const here = (text, shows) => element("p", { class: "here" }, element("b", {}, "Here: "),
    shows ? text : `This run is one of the exceptions: ${text}`);

  return {
    turns, quiet, pane, panes, letter, cells, map, onTrack, decision, here, mean, loss,
  };
})();
