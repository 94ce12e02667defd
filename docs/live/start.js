// The only script that a page with a live model loads by itself. The rest loads when the reader presses the button
// or scrolls to the model.

for (const root of document.querySelectorAll(".live")) {
  const button = root.querySelector(".start");
  const status = root.querySelector(".said");
  let left = false;

  const start = async (event) => {
    scroll.disconnect();
    button.disabled = true;
    try {
      const { open } = await import("./live.js");
      await open(root, event?.type === "click");
    } catch (error) {
      status.textContent = "The model's script couldn't be loaded. Reload the page to try again.";
      button.disabled = false;
    }
  };

  // A model that is in view from the beginning waits for the button: nobody scrolled to it.
  const scroll = new IntersectionObserver(([seen]) => {
    if (!seen.isIntersecting) left = true;
    else if (left && !navigator.connection?.saveData) start();
  }, { threshold: 0.6 });

  button.addEventListener("click", start);
  button.hidden = false;
  scroll.observe(root);
}
