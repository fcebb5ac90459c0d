// Time: the slider over the steps of a training, the loss above it, and below which head had which role when.
//
// A stop is as wide as another, however many steps lie between, so that the slider, the curve and the lanes agree.
"use strict";

const Time = (() => {
  const { byId, element, svg, fixed, roleColor } = View;
  const HEIGHT = 50; // of the curve, in its own units; a stop is 10 wide
  let blind, floor; // nats: of a guess among all words, and of the grammar itself
  let whole; // steps of a whole training
  let drawn = ""; // which run, and how many of its stops

  const called = (run) => (run.recorded ? `the training with seed ${run.seed}` : `your training, seed ${run.seed}`);

  function drawCurve({ stops }) {
    const most = Math.max(blind, ...stops.map(({ loss }) => loss));
    const y = (loss) => HEIGHT * (1 - loss / (1.1 * most));
    const level = (loss, name) => svg("line", { x1: 0, x2: 10 * stops.length, y1: y(loss), y2: y(loss), class: name });
    const points = stops.map(({ loss }, i) => `${10 * i + 5},${y(loss).toFixed(1)}`).join(" ");
    byId("curve").setAttribute("viewBox", `0 0 ${10 * stops.length} ${HEIGHT}`);
    byId("curve").replaceChildren(level(blind, "level"), level(floor, "level"), svg("polyline", { points }),
      svg("line", { class: "now", y1: 0, y2: HEIGHT }));
  }

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
      return element("div", {}, element("span", { class: "role" }, role), lane);
    }));
    byId("spells").replaceChildren(...lanes.map((lane) => element("li", {}, inWords(name, lane))));
  }

  // "subject → verb: head 1.2 from step 150 to 230, head 1.0 from step 340"
  function inWords(name, lane) {
    const spells = Runs.spells(name, lane).map(({ from, to, layer, head }) =>
      `head ${layer}.${head} from step ${from}${to === null ? "" : `, lost at ${to}`}`);
    return `${lane.role}: ${spells.join("; again ")}`;
  }

  // guess: {name, share} of the hidden word, or null.
  function draw(state, guess = null) {
    const run = Runs.get(state.run);
    const [place, stop] = [Runs.placeOf(state), Runs.stopAt(state)];
    if (drawn !== `${state.run} ${run.stops.length}`) {
      drawn = `${state.run} ${run.stops.length}`;
      drawCurve(run);
      drawLanes(state.run);
      byId("step").max = run.stops.length - 1;
      byId("time").style.setProperty("--stops", run.stops.length);
    }
    const last = run.stops.at(-1).step;
    byId("end-note").textContent = !run.recorded && last < whole ? `${last} steps so far` : "trained";
    byId("time").style.setProperty("--at", place);
    const line = byId("curve").querySelector(".now");
    line.setAttribute("x1", 10 * place + 5);
    line.setAttribute("x2", 10 * place + 5);
    byId("step").value = place;
    const when = stop.step ? `after ${stop.step} steps` : "before training";
    byId("step").setAttribute("aria-valuetext", when);
    byId("step-note").textContent = guess ? `${when}: ${guess.name} ${View.percent(guess.share)}` : when;
    byId("loss-note").textContent = `loss ${fixed(stop.loss)}`;
    const kept = run.stops.filter(({ numbers }) => numbers).length;
    byId("run-note").textContent = `${called(run)}, kept at ${kept} steps; between them it snaps`;
  }

  function start(data, onStop) {
    blind = Math.log(data.model.num_words);
    ({ floor } = data);
    whole = data.grow.recipe.steps;
    byId("levels").textContent = `Loss: nats a hidden word; dotted, ${fixed(blind)} for a blind guess and ` +
      `${fixed(floor)} for the grammar itself. A lane is coloured while some head has its name.`;
    byId("step").addEventListener("input", () => onStop(Number(byId("step").value)));
  }

  return { start, draw };
})();
