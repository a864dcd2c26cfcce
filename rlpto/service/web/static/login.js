// `rlpto serve` prints a link that ends in #TOKEN: what stands behind # is sent to no server.
"use strict";
(() => {
  const signIn = () => {
    const token = location.hash.slice(1);
    if (!token) return;
    history.replaceState(null, "", location.pathname + location.search);
    const form = document.getElementById("login");
    form.elements.token.value = token;
    form.requestSubmit();
  };
  addEventListener("hashchange", signIn);  // the link was opened where the page was open already
  signIn();
})();
