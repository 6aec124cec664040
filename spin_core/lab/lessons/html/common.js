const make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes))
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value); else element.setAttribute(name, value);
  element.append(...children);
  return element;
};
const css = text => { style.textContent += text; };
const choice = (title, options, chosen, change) => {
  const menu = make("select", {title, "aria-label": title, onchange: () => change(menu.value)});
  for (const [value, text] of options) menu.append(make("option", {value}, text));
  menu.value = chosen;
  return menu;
};
