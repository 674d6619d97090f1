// Whom a loss pushes: the gradient of the hard loss for each negative of one anchor on a circle.
// `curlnbPushes.values` is the model, which a test compares with the package's gradient.
window.curlnbPushes = (() => {
  const COUNT = 24;

  // Negatives evenly around the circle; those nearest to the anchor, at angle 0, are of its class.
  const angles = Array.from({ length: COUNT }, (_, i) => (2 * Math.PI * (i + 0.5)) / COUNT);

  function values({ beta, temperature, tau, positive, own }) {
    const sims = angles.map(Math.cos), sum = (list) => list.reduce((total, x) => total + x, 0);
    const falses = angles.map((angle) => Math.min(angle, 2 * Math.PI - angle) < own);
    const weights = sims.map((s) => Math.exp((beta * (s - 1)) / temperature));
    const total = sum(weights), share = weights.map((w) => w / total);
    const e = sims.map((s) => Math.exp(s / temperature));
    const pos = Math.exp(Math.cos(positive) / temperature), floor = Math.exp(-1 / temperature);
    const mean = sum(share.map((q, i) => q * e[i]));
    const corrected = (mean - tau * pos) / (1 - tau), above = tau === 0 || corrected > floor;
    const g = above ? corrected : floor;
    const rate = above ? COUNT / (pos + COUNT * g) / (1 - tau) / temperature : 0;
    const pushes = share.map((q, i) => rate * q * ((1 + beta) * e[i] - beta * mean));
    return {
      sims, falses, share, pushes, pos, above,
      loss: Math.log(pos + COUNT * g) - Math.log(pos),
      falseShare: sum(share.filter((_, i) => falses[i])),
    };
  }

  const CONTROLS = [
    ["beta", "concentration β", 0, 6, 0.25, 1],
    ["temperature", "temperature t", 0.1, 2, 0.05, 0.5],
    ["tau", "class prior τ⁺", 0, 0.5, 0.05, 0.1],
    ["positive", "angle of the positive", 0, 1.5, 0.05, 0.4],
    ["own", "half width of the anchor's class", 0, 1.5, 0.05, 0.5],
  ];

  function show(element) {
    const settings = {};
    element.innerHTML = `<div class="controls"></div>
      <svg viewBox="0 0 640 420" role="img" aria-label="An anchor, its negatives on a circle, and the push on each"></svg>
      <p role="status"></p>`;
    const [controls, svg, said] = ["div", "svg", "p"].map((tag) => element.querySelector(tag));
    const usual = Object.fromEntries(CONTROLS.map(([name, , , , , value]) => [name, value]));
    const unit = 55 / Math.max(...values(usual).pushes.map(Math.abs)); // one scale for all settings
    const draw = () => {
      const found = values(settings);
      const most = Math.max(...found.share);
      const shapes = [`<circle cx="320" cy="210" r="130" fill="none" stroke="currentColor"/>
        <rect x="444" y="204" width="12" height="12" fill="currentColor"/>`];
      angles.forEach((angle, i) => {
        const [c, s] = [Math.cos(angle), Math.sin(angle)], push = found.pushes[i];
        const radius = 3 + 9 * Math.sqrt(found.share[i] / most), reach = radius + Math.min(unit * Math.abs(push), 66);
        const long = push === 0 ? 0 : Math.sign(push) * reach; // as much beyond the point as the push
        const [x, y] = [320 + 130 * c, 210 - 130 * s], colour = found.falses[i] ? "#c1272d" : "#0173b2";
        shapes.push(`<line x1="${x}" y1="${y}" x2="${x + long * c}" y2="${y - long * s}"
            stroke="${colour}" stroke-width="4"/>
          <circle cx="${x}" cy="${y}" r="${radius}" fill="${push < 0 ? "none" : colour}"
            stroke="${colour}" fill-opacity="0.6"/>`);
      });
      const [c, s] = [Math.cos(settings.positive), Math.sin(settings.positive)];
      shapes.push(`<circle cx="${320 + 130 * c}" cy="${210 - 130 * s}" r="8" fill="none"
        stroke="#029e73" stroke-width="3"/>`);
      svg.innerHTML = shapes.join("");
      const pulled = found.pushes.filter((push) => push < 0).length;
      const words = `False negatives (red) have ${(100 * found.falseShare).toFixed(1)}% of the weight. `;
      said.textContent = words + (found.above
        ? `A line outwards is a push away from the anchor (the square). ${pulled} of ${COUNT} negatives are `
          + "pulled towards it instead: with β > 0, easy ones are attracted."
        : "The estimate is on its floor, so that no negative gets a gradient.");
    };
    for (const [name, label, min, max, step, value] of CONTROLS) {
      settings[name] = value;
      const line = document.createElement("label");
      line.innerHTML = `<span>${label}: <b>${value}</b></span>
        <input type="range" min="${min}" max="${max}" step="${step}" value="${value}">`;
      line.querySelector("input").addEventListener("input", (event) => {
        settings[name] = Number(event.target.value);
        line.querySelector("b").textContent = event.target.value;
        draw();
      });
      controls.append(line);
    }
    draw();
  }

  document.addEventListener("DOMContentLoaded", () =>
    document.querySelectorAll("#pushes").forEach(show));
  return { values };
})();
