/* Training as something that can be started and paused from outside. It runs in a worker, which is made of the page's
   own scripts, so that a page without a server can have one; or, where there is none, beside the page in slices of a
   few milliseconds. Both ways it is told and tells the same messages.

   told    {start: {growth, seed, steps}}   {run: steps}   {pause}
   tells   {kind: "ready", fast}   {kind: "look", step, loss, heads, numbers}   {kind: "paused", step} */
"use strict";

const Engine = (() => {
  const PARTS = ["packed", "matmul", "pieces", "network", "training", "roles", "engine"];
  const LOOK = 20; // steps between looks
  const SLICE = 25; // milliseconds

  function create(tell) {
    let run, life, until;
    let [running, pausing, called] = [false, false, false];
    const { port1, port2 } = new MessageChannel(); // a timer would wait for 4 ms each time
    port1.onmessage = slice;

    function later() {
      if (!called) port2.postMessage(null);
      called = true;
    }

    function* look() {
      const heads = yield* Roles.heads(run.model, run.held_out, run.rules);
      const loss = yield* Training.held_out_loss(run);
      tell({ kind: "look", step: run.step, loss, heads, numbers: Network.numbers_of(run.model) });
    }

    /* The whole life of a run. It stops only between two steps. */
    function* live() {
      yield* look();
      while (run.step < run.recipe.steps) {
        if (pausing || run.step >= until) {
          if (pausing || until > 0) tell({ kind: "paused", step: run.step });
          [running, pausing] = [false, false];
          yield;
          continue;
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

    function start({ growth, seed, steps }) {
      const { recipe, rules, gold, pad } = growth;
      run = Training.start(recipe, Training.unpack(growth.train, pad), seed);
      run.held_out = Roles.prepare(Training.unpack(growth.held_out, pad), gold, rules);
      run.rules = rules;
      [until, running, pausing] = [steps, true, false];
      life = live();
      tell({ kind: "ready", fast: run.model.space.fast });
      later();
    }

    function receive(told) {
      if ("start" in told) start(told.start);
      if ("pause" in told) pausing = running;
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
      const text = PARTS.map((part) => scripts.get(`model/${part}.js`)).join("\n");
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
