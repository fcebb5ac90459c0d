// Time: the slider over the steps of a training, and below, in which of them a head had which job. A stop is as wide as
// another, however many steps lie between.
"use strict";

const Time = (() => {
  const { byId, element, jobOf, roleColor, headCalled } = View;
  let whole; // steps of a whole training
  let drawn = ""; // which run, and how many of its stops

  // A lane for each role: a mark for each stop at which a head has it, with the head's name.
  function drawLanes(name) {
    const lanes = Runs.lanes(name);
    byId("lanes").replaceChildren(...lanes.map(({ role, heads }) => {
      const marks = heads.map((having) => {
        const mark = element("i", { class: having.length ? "lit" : null });
        mark.style.setProperty("--head", roleColor(role));
        return mark;
      });
      const lane = element("span", { class: "lane", "aria-hidden": "true" }, ...marks);
      return element("div", {}, element("span", { class: "role" }, jobOf(role)), lane);
    }));
    byId("spells").replaceChildren(...lanes.map((lane) => element("li", {}, inWords(name, lane))));
  }

  // "subjects look for their verb: head 7 from step 150, lost at 230; again head 5 from step 340"
  function inWords(name, lane) {
    const spells = Runs.spells(name, lane).map(({ from, to, layer, head }) =>
      `${headCalled(Levers.nameOf(layer, head))} from step ${from}${to === null ? "" : `, lost at ${to}`}`);
    return `${jobOf(lane.role)}: ${spells.join("; again ")}`;
  }

  // guess: {name, share} of the hidden word, or null.
  function draw(state, guess = null) {
    const run = Runs.get(state.run);
    const [place, stop] = [Runs.placeOf(state), Runs.stopAt(state)];
    if (drawn !== `${state.run} ${run.stops.length}`) {
      drawn = `${state.run} ${run.stops.length}`;
      drawLanes(state.run);
      byId("step").max = run.stops.length - 1;
      byId("time").style.setProperty("--stops", run.stops.length);
    }
    const last = run.stops.at(-1).step;
    byId("end-note").textContent = !run.recorded && last < whole ? `${last} steps so far` : "trained";
    byId("time").style.setProperty("--at", place);
    byId("step").value = place;
    const which = state.run === "0" || state.story ? "" : `, trained with seed ${run.seed}`;
    const when = (stop.step ? `after ${stop.step} steps` : "before training") + which;
    byId("step").setAttribute("aria-valuetext", when);
    byId("step-note").textContent = guess ? `${when}: ${guess.name} ${View.percent(guess.share)}` : when;
  }

  function start(data, onStop) {
    whole = data.grow.recipe.steps;
    byId("step").addEventListener("input", () => onStop(Number(byId("step").value)));
  }

  return { start, draw };
})();
