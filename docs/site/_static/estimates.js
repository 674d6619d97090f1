// What g estimates: an anchor on a circle of classes, and three estimates of the mean of e^(s/t) over
// its true negatives. `curlnbEstimates.values` is the model, which a test compares with the package.
window.curlnbEstimates = (() => {
  const POINTS = 12, GOLDEN = 0.6180339887498949;

  // Angles of all points, class by class; the anchor is at 0, in the middle of class 0.
  function world({ classes, width }) {
    const angles = [];
    for (let c = 0; c < classes; c++)
      for (let i = 0; i < POINTS; i++)
        angles.push({
          own: c === 0,
          angle: (2 * Math.PI) / classes * (c + width * ((i + 0.5) / POINTS - 0.5)),
        });
    return angles;
  }

  const mean = (values) => values.reduce((sum, x) => sum + x, 0) / values.length;

  function values(settings) {
    const { classes, negatives, temperature, shift, beta } = settings;
    const points = world(settings), tau = 1 / classes;
    const e = (angle) => Math.exp(Math.cos(angle) / temperature);
    const drawn = Array.from({ length: negatives }, (_, i) => {
      const u = ((i + 1) * GOLDEN + shift) % 1; // a sequence that covers the interval evenly
      return points[Math.floor(u * points.length)];
    });
    const positive = points[Math.floor(POINTS * ((shift * 7) % 1))].angle;
    const floor = Math.exp(-1 / temperature), pos = e(positive);
    const biased = mean(drawn.map((point) => e(point.angle)));
    const corrected = (found) => Math.max((found - tau * pos) / (1 - tau), floor);
    const weights = drawn.map((point) => Math.exp((beta * Math.cos(point.angle)) / temperature));
    const weighted = mean(drawn.map((point, i) => weights[i] * e(point.angle))) / mean(weights);
    return {
      drawn, positive, biased, floor,
      debiased: corrected(biased),
      hard: corrected(weighted),
      truth: mean(points.filter((point) => !point.own).map((point) => e(point.angle))),
    };
  }

  const CONTROLS = [
    ["classes", "classes C, so that τ⁺ = 1/C", 2, 20, 1, 5],
    ["negatives", "negatives N", 2, 256, 1, 30],
    ["temperature", "temperature t", 0.1, 2, 0.05, 0.5],
    ["beta", "concentration β", 0, 6, 0.25, 1],
    ["width", "width of a class", 0.1, 1, 0.05, 0.6],
    ["shift", "another draw", 0, 0.99, 0.01, 0.3],
  ];

  function show(element) {
    const settings = {}, place = (angle, r) => [200 + r * Math.cos(angle), 200 - r * Math.sin(angle)];
    element.innerHTML = `<div class="controls"></div>
      <svg viewBox="0 0 640 400" role="img" aria-label="An anchor and its negatives on a circle, and bars of three estimates"></svg>
      <p role="status"></p>`;
    const [controls, svg, said] = ["div", "svg", "p"].map((tag) => element.querySelector(tag));
    const draw = () => {
      const found = values(settings), scale = Math.log(found.floor);
      const shapes = [`<circle cx="200" cy="200" r="150" fill="none" stroke="currentColor"/>`];
      for (const { own, angle } of found.drawn) {
        const [x, y] = place(angle, 150);
        shapes.push(`<circle cx="${x}" cy="${y}" r="5" fill="${own ? "#c1272d" : "#0173b2"}"
          fill-opacity="0.6"/>`);
      }
      const [px, py] = place(found.positive, 150), [ax, ay] = place(0, 150);
      shapes.push(`<circle cx="${px}" cy="${py}" r="8" fill="none" stroke="#029e73" stroke-width="3"/>
        <rect x="${ax - 6}" y="${ay - 6}" width="12" height="12" fill="currentColor"/>`);
      const names = { truth: "truth", biased: "biased", debiased: "debiased", hard: "hard" };
      const height = (value) => 360 - (320 * (Math.log(value) - scale)) / (-2 * scale);
      Object.keys(names).forEach((name, i) => {
        const x = 430 + 50 * i, y = height(found[name]);
        const colour = { truth: "#029e73", biased: "#0173b2", debiased: "#de8f05", hard: "#d55e00" };
        shapes.push(`<rect x="${x - 14}" y="${y}" width="28" height="${360 - y}"
          fill="${colour[name]}"/><text x="${x}" y="385" text-anchor="middle" font-size="12"
          fill="currentColor">${names[name]}</text><text x="${x}" y="${y - 5}" text-anchor="middle"
          font-size="11" fill="currentColor">${Number(found[name].toPrecision(3))}</text>`);
      });
      shapes.push(`<text x="505" y="398" text-anchor="middle" font-size="11" fill="currentColor">logarithms,
        from the floor upwards</text>`);
      svg.innerHTML = shapes.join("");
      const text = (name) => found[name].toFixed(3), own = found.drawn.filter((point) => point.own);
      said.textContent = `Mean of e^(s/t) over the true negatives: ${text("truth")}. The biased mean is `
        + `${text("biased")}, the debiased estimate ${text("debiased")}, the hard one ${text("hard")}`
        + `${found.debiased === found.floor ? ", on the floor" : ""}. Of ${settings.negatives} negatives `
        + `${own.length} are false (red); the square is the anchor, the ring its positive.`;
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
    document.querySelectorAll("#estimates").forEach(show));
  return { values };
})();
