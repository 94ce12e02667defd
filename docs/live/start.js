// All that the page of a live model fetches until somebody wants it: by the button, or by scrolling to it.

for (const place of document.querySelectorAll(".live")) {
  const button = place.querySelector(".start");
  const said = place.querySelector(".said");
  let left = false;

  const start = async (event) => {
    scroll.disconnect();
    button.disabled = true;
    try {
      const { open } = await import("./live.js");
      await open(place, event?.type === "click");
    } catch (error) {
      said.textContent = `The script of the model did not arrive. Reload the page to try again.`;
      button.disabled = false;
    }
  };

  // What is in view from the beginning has not been scrolled to, and waits for the button.
  const scroll = new IntersectionObserver(([seen]) => {
    if (!seen.isIntersecting) left = true;
    else if (left && !navigator.connection?.saveData) start();
  }, { threshold: 0.6 });

  button.addEventListener("click", start);
  button.hidden = false;
  scroll.observe(place);
}
