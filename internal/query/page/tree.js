// Names as a tree: shop ▸ checkout ▸ eu. A node is a counter, or the sum of those whose names have their first parts in
// common. It does not use the document.

// groupOf is the first parts of a name, which . and / part, as the service's group has them: one at the
// beginning, as in a path, parts nothing.
export function groupOf(name, parts) {
  for (let i = 1; i < name.length; i++) {
    if ((name[i] === "." || name[i] === "/") && --parts === 0) return name.slice(0, i);
  }
  return name;
}

export const partsOf = (name) => 1 + name.slice(1).replace(/[^./]/g, "").length;
export const hasParts = (name) => partsOf(name) > 1;

export const none = { total: 0, lower: 0, upper: 0 };
const plus = (a, b) => (a === null || b === null ? null : a + b);
export const sum = (list, of) => list.reduce(
  (s, leaf) => ({
    total: s.total + of(leaf).total,
    lower: s.lower + of(leaf).lower,
    upper: plus(s.upper, of(leaf).upper),
  }),
  none,
);

// leafOf is a counter with what is known of it, as a node.
export const leafOf = (key, now, before, recent) => ({
  id: `key ${key}`,
  name: key,
  label: key,
  line: { name: key, key },
  counters: 1,
  now,
  before,
  recent,
  level: 1,
});

// grow makes the nodes of a level from leaves, whose names have depth - 1 parts in common. Their children are made when
// they are on the screen. A group of one is its only member.
export function grow(leaves, depth = 1, level = 1, parent = "") {
  const groups = new Map();
  for (const leaf of leaves) {
    const group = groupOf(leaf.name, depth);
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group).push(leaf);
  }
  return [...groups].map(([group, members]) => {
    if (members.length === 1) {
      const [leaf] = members;
      return { ...leaf, label: labelOf(leaf.name, parent), level };
    }
    let deeper = depth, name = group;
    while (members.every((leaf) => groupOf(leaf.name, deeper + 1) === groupOf(members[0].name, deeper + 1))) {
      name = groupOf(members[0].name, ++deeper);
    }
    const prefix = prefixOf(name, members);
    return {
      id: `${deeper} ${name}`,
      name,
      label: labelOf(name, parent),
      line: { name: `${prefix}*`, prefix },
      counters: members.length,
      level,
      depth,
      group,
      above: parent,
      now: sum(members, (leaf) => leaf.now),
      before: members.some((leaf) => !leaf.before)
        ? undefined
        : { ...sum(members, (leaf) => leaf.before), complete: members.every((leaf) => leaf.before.complete) },
      recent: members.some((leaf) => !leaf.recent) ? undefined : sum(members, (leaf) => leaf.recent),
      parent: name, deeper: deeper + 1, members,
    };
  });
}

export const childrenOf = (node) => (node.children ??= grow(node.members, node.deeper, node.level + 1, node.parent));

// labelOf is what a name has beyond that of its parent. Where a path continues, it ends with a slash.
function labelOf(name, parent) {
  if (name === parent) return `${name} itself`;
  return parent ? name.slice(parent.length + (name[parent.length] === "." ? 1 : 0)) || name : name;
}

// prefixOf is what the names of a group's counters begin with, and as few others as possible.
function prefixOf(name, members) {
  const ends = new Set(members.map((leaf) => leaf.name[name.length]));
  return ends.size === 1 && !ends.has(undefined) ? name + [...ends][0] : name;
}

const bySize = (a, b) => (a === b ? 0 : a < b ? -1 : 1);
const orders = {
  total: (a, b) => b.now.total - a.now.total || bySize(a.name, b.name),
  change: (a, b) => b.change.size - a.change.size || orders.total(a, b),
  name: (a, b) => bySize(a.name, b.name),
};

// ordered sorts nodes. Those of which no change is known are last, whichever way.
export function ordered(nodes, sort, turned) {
  const out = [...nodes].sort(orders[sort]);
  if (!turned) return out;
  if (sort !== "change") return out.reverse();
  const known = out.filter((node) => node.change.size > -Infinity);
  return [...known.reverse(), ...out.slice(known.length)];
}
