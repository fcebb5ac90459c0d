// Another seed, trained in the page: orders to the engine, and what it tells as the stops of a run.
"use strict";

const Grow = (() => {
  const { byId, on } = View;
  const FIRST = 3; // the seed that is offered
  let data, layout, follow, send, seed, ready, running, fast;
  let [seconds, since] = [0, 0];

  const run = () => `g${seed}`;
  const last = () => (Runs.has(run()) ? Runs.lastStep(run()) : 0);
  const now = () => seconds + (running ? (performance.now() - since) / 1000 : 0);

  function engine() {
    const scripts = [...document.scripts].filter((script) => script.dataset.name);
    send = Engine.open(new Map(scripts.map((script) => [script.dataset.name, script.textContent])), receive);
  }

  // Another training, of so many steps.
  function train(newSeed, steps) {
    if (!send) engine();
    [seed, ready, running, seconds, since] = [newSeed, false, true, 0, performance.now()];
    byId("grow-seed").value = seed;
    const growth = { ...data, recipe: { ...data.recipe, parameters: layout } };
    send({ start: { growth, seed, steps } });
    draw();
  }

  function goOn() {
    [running, since] = [true, performance.now()];
    send({ run: data.recipe.steps });
    draw();
  }

  function pause() {
    if (running) send({ pause: true });
  }

  // What comes between an order to start and "ready" is still from the run before.
  function receive(told) {
    if (told.kind === "ready") [ready, fast] = [true, told.fast];
    if (!ready) return;
    if (told.kind === "look") {
      const { step, loss, heads, numbers } = told;
      const before = step === 0 ? null : last();
      if (step === 0) Runs.grow(seed);
      Runs.get(run()).stops.push({ step, loss, heads, numbers });
      follow(run(), before);
    }
    if (told.kind === "paused") [seconds, running] = [now(), false];
    draw();
  }

  function draw() {
    byId("grow-train").textContent = running ? "pause" : canGoOn() ? "go on" : "train";
    const speed = last() === data.recipe.steps ? ", done"
      : last() && now() > 0 ? `, ${Math.round(last() / now())} steps a second` : "";
    const slow = fast === false ? " (this browser lacks WebAssembly SIMD, so it takes longer)" : "";
    byId("grow-status").textContent = seed === undefined ? "" : `step ${last()} of ${data.recipe.steps}${speed}${slow}`;
  }

  // What makes no sense does not stay in the field.
  function seedAsked() {
    const asked = Address.whole(byId("grow-seed").value, 0, 999999);
    byId("grow-seed").value = asked ?? seed ?? FIRST;
    return Number(byId("grow-seed").value);
  }

  const canGoOn = () => seedAsked() === seed && last() > 0 && last() < data.recipe.steps;

  function press() {
    if (running) pause();
    else if (canGoOn()) goOn();
    else train(notShown(seedAsked()), data.recipe.steps);
  }

  // Other random numbers than those of all trainings that a reader has seen.
  function notShown(number) {
    while (Runs.seeds().includes(number)) number += 1;
    return number;
  }

  // onLook(run, the step of the look before): a stop has come.
  function start(app, onLook) {
    ({ grow: data, layout } = app.data);
    follow = onLook;
    on("grow-train", "click", press);
    on("grow-seed", "change", draw);
    draw();
  }

  return { start, train, pause, isRunning: () => running };
})();
