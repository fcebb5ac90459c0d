/* What has been seen of a run: looks at the maps and names, the loss of each step, and what happened: a role that was
   there for the first time, a head that was knocked out, another that took over its role. Nothing here is drawn. */
"use strict";

const Growth = (() => {
  const AROUND = 10; // steps: the loss that is shown is a mean, since each batch is another

  function create() {
    const byRole = { firsts: new Map(), lost: new Map() };
    return { looks: [], losses: [], toggles: [], events: [], ...byRole };
  }

  const nameOf = (names, head) => {
    const [layer, number] = head.split(".").map(Number);
    return names[layer][number];
  };

  /* Heads that are knocked out after `step` steps: each toggle turns one over. */
  function outAt({ toggles }, step) {
    const out = new Set();
    for (const { head, step: at } of toggles) {
      if (at <= step && !out.delete(head)) out.add(head);
    }
    return out;
  }

  /* [role, head] of all heads that have one and are not out after `step` steps. */
  function having(growth, names, step) {
    const out = outAt(growth, step);
    const all = names.flatMap((heads, layer) => heads.map((role, head) => [role, `${layer}.${head}`]));
    return all.filter(([role, head]) => role && !out.has(head));
  }

  /* One look more -> what is new in it, in words. The names of a look without any are those of the last. */
  function add(growth, { step, losses, weights, names }, seconds) {
    growth.losses.push(...losses);
    const look = { step, weights, names: names ?? growth.looks.at(-1).names };
    growth.looks.push(look);
    if (!names) return [];
    const news = [];
    for (const [role, head] of having(growth, names, step)) {
      const lost = growth.lost.get(role);
      if (lost && lost.head !== head) {
        growth.lost.delete(role);
        growth.events.push({ step, role, text: `${role} taken over at step ${step}` });
        news.push(`head ${head} has taken over ${role}, ${step - lost.step} steps after ${lost.head} was knocked out`);
      }
      if (growth.firsts.has(role)) continue;
      growth.firsts.set(role, { head, seconds });
      growth.events.push({ step, role, text: `${role} at step ${step}` });
      news.push(`head ${head} has a role, ${role}`);
    }
    return news;
  }

  /* A head went out or came back -> what that means, in words. */
  function toggled(growth, { head, step }) {
    growth.toggles.push({ head, step });
    const last = growth.looks.at(-1);
    const role = nameOf(last.names, head);
    const isOut = outAt(growth, step).has(head);
    growth.events.push({ step, role: null, text: `head ${head} ${isOut ? "out" : "back"} at step ${step}` });
    if (!isOut) {
      if (growth.lost.get(role)?.head === head) growth.lost.delete(role);
      return `head ${head} is back`;
    }
    if (!role) return `head ${head}, which has no role, is knocked out`;
    const same = having(growth, last.names, step).find(([other]) => other === role);
    if (same) return `head ${head} is knocked out, but head ${same[1]} has the same role, ${role}`;
    growth.lost.set(role, { head, step });
    return `head ${head} is knocked out, and with it ${role}; no other has it yet`;
  }

  /* The mean loss of the steps just before each one. */
  const smooth = ({ losses }) => losses.map((_, i) => {
    const some = losses.slice(Math.max(0, i + 1 - AROUND), i + 1);
    return some.reduce((sum, loss) => sum + loss, 0) / some.length;
  });

  /* The place of the last look that is not later than a step. */
  const lookAt = ({ looks }, step) => looks.findLastIndex((look) => look.step <= step);

  return { create, add, toggled, nameOf, outAt, smooth, lookAt };
})();
