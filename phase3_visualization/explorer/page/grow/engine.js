/* Training as something that can be started, paused and disturbed from outside. It runs in a worker, which is made of
   the page's own scripts, so that a page without a server can have one; or, where there is none, beside the page in
   slices of a few milliseconds. Both ways it is told and tells the same messages.

   told    {start: {growth, seed, toggles, steps}}   {run: steps}   {pause}   {toggle: "1.2"}
   tells   {kind: "ready", fast}   {kind: "look", step, losses, weights, names}   {kind: "toggled", head, step}
           {kind: "paused", step}

   A head that is toggled leaves, or comes back, between two steps; with the same seed and the same toggles every run is
   the same. */
"use strict";

const Engine = (() => {
  const PARTS = ["matmul", "pieces", "network", "training", "roles", "engine"];
  const [LOOK, NAME] = [5, 10]; // steps between looks at the maps, and between names
  const SLICE = 25; // milliseconds

  function create(tell) {
    let run, life, until, planned;
    let [running, pausing, called] = [false, false, false];
    let waiting = []; // heads to be toggled at the end of this step
    const { port1, port2 } = new MessageChannel(); // a timer would wait for 4 ms each time
    port1.onmessage = slice;

    function later() {
      if (!called) port2.postMessage(null);
      called = true;
    }

    function toggle(name) {
      const [layer, head] = name.split(".").map(Number);
      const out = run.model.out[layer];
      run.model.out[layer] = out.includes(head) ? out.filter((other) => other !== head) : [...out, head];
      tell({ kind: "toggled", head: name, step: run.step });
    }

    /* All weights on the sentence that is shown, one after the other: layer, head, query, key. */
    function maps() {
      const before = run.model.space.mark();
      const { layers } = Network.forward(run.model, run.shown);
      const weights = layers.flatMap((layer) => layer.weights[0].flatMap(({ data }) => [...data]));
      run.model.space.release(before);
      return Float32Array.from(weights);
    }

    function* look() {
      const names = run.step % NAME === 0 ? yield* Roles.names(run.model, run.held_out, run.rules) : null;
      tell({ kind: "look", step: run.step, losses: run.losses.splice(0), weights: maps(), names });
    }

    /* The whole life of a run. It stops only between two steps. */
    function* live() {
      yield* look();
      while (run.step < run.recipe.steps) {
        for (const { head, step } of planned) if (step === run.step) waiting.push(head);
        planned = planned.filter(({ step }) => step > run.step);
        waiting.splice(0).forEach(toggle);
        if (pausing || run.step === until) {
          if (pausing || until > 0) tell({ kind: "paused", step: run.step });
          [running, pausing] = [false, false];
          yield;
          continue; // heads may have been toggled meanwhile
        }
        yield* Training.step(run);
        if (run.step % LOOK === 0) yield* look();
      }
      running = false;
      tell({ kind: "paused", step: run.step });
    }

    function slice() {
      called = false;
      const end = performance.now() + SLICE;
      while (running && performance.now() < end) if (life.next().done) running = false;
      if (running) later();
    }

    function start({ growth, seed, toggles, steps }) {
      const { recipe, rules, gold, pad } = growth;
      run = Training.start(recipe, Training.unpack(growth.train, pad), seed);
      run.held_out = Roles.prepare(Training.unpack(growth.held_out, pad), gold, rules);
      run.shown = Training.together([growth.shown.tokens]);
      run.rules = rules;
      [planned, waiting, until, running, pausing] = [toggles, [], steps, true, false];
      life = live();
      tell({ kind: "ready", fast: run.model.space.fast });
      later();
    }

    function receive(told) {
      if ("start" in told) start(told.start);
      if ("pause" in told) pausing = running;
      if ("toggle" in told) running ? waiting.push(told.toggle) : toggle(told.toggle);
      if ("run" in told) {
        [until, running, pausing] = [told.run, true, false];
        later();
      }
    }

    return { receive };
  }

  /* The worker's own side. */
  function listen() {
    const { receive } = create((told) => postMessage(told));
    onmessage = ({ data }) => receive(data);
  }

  /* An engine in a worker if there can be one -> send(message). scripts: name -> text of the page's own scripts.
     A worker that fails is replaced by an engine beside the page, which is told everything once more. */
  function open(scripts, tell) {
    const sent = []; // since the last start
    let receive;
    function beside() {
      ({ receive } = create(tell));
      sent.forEach(receive);
    }
    try {
      const text = PARTS.map((part) => scripts.get(`grow/${part}.js`)).join("\n");
      const worker = new Worker(URL.createObjectURL(new Blob([text, "Engine.listen();"], { type: "text/javascript" })));
      worker.onmessage = ({ data }) => tell(data);
      worker.onerror = beside;
      receive = (message) => worker.postMessage(message);
    } catch {
      beside();
    }
    return (message) => {
      if ("start" in message) sent.length = 0;
      sent.push(message);
      receive(message);
    };
  }

  return { listen, open };
})();
