(() => {
  for (const card of document.querySelectorAll(".camtool-card:not([data-ready])")) {
    card.dataset.ready = "";
    const picture = card.querySelector(".camtool-picture"), template = picture?.querySelector("template");
    const layers = [...card.querySelectorAll("[data-colors]")];
    if (!template || !layers.length) continue;
    picture.replaceChildren(template.content.cloneNode(true));
    const heat = picture.querySelector(".camtool-heat"), pointer = card.querySelector(".camtool-pointer");
    const opacity = card.querySelector(".camtool-opacity"), range = opacity.querySelector("input");
    let numbers, width;
    const show = (layer) => {
      heat.src = layer.dataset.colors;
      numbers = Uint8Array.from(atob(layer.dataset.numbers), (letter) => letter.charCodeAt(0));
      width = Number(layer.dataset.width);
      for (const each of layers) each.setAttribute("aria-pressed", String(each === layer));
    };
    for (const layer of layers) layer.addEventListener("click", () => show(layer));
    opacity.hidden = false;
    const fade = () => { heat.style.opacity = range.value / 100; };
    range.addEventListener("input", fade);
    picture.addEventListener("pointermove", (event) => {
      const box = picture.getBoundingClientRect(), height = numbers.length / width;
      const x = Math.floor((event.clientX - box.left) / box.width * width);
      const y = Math.floor((event.clientY - box.top) / box.height * height);
      if (x >= 0 && x < width && y >= 0 && y < height) pointer.value = `${numbers[y * width + x]} % of the most heat here`;
    });
    picture.addEventListener("pointerleave", () => { pointer.value = ""; });
    show(layers[0]);
    fade();
  }
})();
