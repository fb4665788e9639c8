// What an agent remembers, and which memories go into the prompt: relevant, not the same thing twice, recent ones before old ones.
import { mmr, vrsd } from "ragsys-kernels";

const words = ["nuts", "allergic", "ill", "food", "thai", "curry", "dog", "walk", "park", "coffee", "morning"];

/** Stands for an embedding model: counts words. */
const embed = (text: string): Float32Array =>
  Float32Array.from(words, (word) => text.toLowerCase().split(/\W+/).filter((part) => part === word).length);

const memories = [
  { text: "Ann is allergic to nuts.", daysAgo: 300 },
  { text: "Nuts make Ann ill: she is allergic to nuts.", daysAgo: 2 },
  { text: "Allergic: nuts!", daysAgo: 90 },
  { text: "Ann loves Thai food.", daysAgo: 40 },
  { text: "Thai food again, a curry.", daysAgo: 400 },
  { text: "Ann has a dog, they walk in the park.", daysAgo: 8 },
  { text: "Coffee in the morning, then a walk.", daysAgo: 1 },
];
const vectors = memories.map(({ text }) => embed(text));
const query = embed("Which Thai food for Ann, who is allergic to nuts?");

const show = (title: string, indices: Int32Array) => {
  console.log(title);
  for (const i of indices) console.log(`  ${memories[i].text}`);
};

show("nearest", mmr(query, vectors, 3, { lambdaD: 1 }).indices);
show("MMR", mmr(query, vectors, 3, { lambdaD: 0.5 }).indices);
const recency = memories.map(({ daysAgo }) => -daysAgo / 365);
show("MMR, recent ones first", mmr(query, vectors, 3, { lambdaD: 0.5, bias: recency, lambdaB: 0.7 }).indices);
show("VRSD", vrsd(query, vectors, 3).indices);
