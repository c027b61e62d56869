//! Control flow of a function: its blocks, and where paths that part meet again.
//!
//! The immediate post-dominator of a block is the first block that all paths from it to the end go through. Lengauer
//! and Tarjan's algorithm with path compression finds it in O(m log n) steps, without recursion ("A Fast Algorithm for
//! Finding Dominators in a Flowgraph", TOPLAS 1979).

use std::ops::Range;

use crate::{Function, Module, Operand};

/// Instructions of which all are executed, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The instructions.
    pub instructions: Range<u32>,
    /// The blocks that may be next: the target of its jump, then the block that follows. [`Flow::end`] is the
    /// function's end.
    pub next: [Option<u32>; 2],
    /// The immediate post-dominator; none where no path leads to the end, or to a trap.
    pub join: Option<u32>,
}

/// The blocks of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// In the order of the text.
    pub blocks: Vec<Block>,
    /// Steps that it took to find the joins.
    steps: u64,
}

const NONE: u32 = u32::MAX;

impl Flow {
    /// The control flow of a function of a text.
    pub fn of(module: &Module, function: &Function) -> Flow {
        Flow::with(module, function, false)
    }

    /// As [`of`](Self::of), but threads that return early go nowhere: others do not wait for them. A join is where
    /// the paths of those meet that go on.
    pub fn of_those_that_go_on(module: &Module, function: &Function) -> Flow {
        let (mut flow, all) = (Flow::with(module, function, true), Flow::of(module, function));
        for (block, all) in flow.blocks.iter_mut().zip(all.blocks) {
            block.join = block.join.or(all.join);
            block.next = all.next;
        }
        flow
    }

    fn with(module: &Module, function: &Function, leaves: bool) -> Flow {
        let count = function.instructions.len();
        let name = |at: usize| match &module.forms()[function.instructions[at].form as usize] {
            Ok(form) => form.name(),
            Err(_) => "",
        };
        let ends = |at: usize| match name(at) {
            "bra" | "ret" | "exit" => true,
            // A trap ends the launch: no path goes on from it.
            "trap" => function.instructions[at].guard.is_none(),
            _ => false,
        };
        let mut begins = vec![false; count + 1];
        begins[0] = true;
        function.labels.iter().for_each(|&at| begins[at as usize] = true);
        (0..count).filter(|&at| ends(at)).for_each(|at| begins[at + 1] = true);
        let starts: Vec<u32> = (0..count as u32).filter(|&at| begins[at as usize]).collect();
        let block_of = |at: u32| starts.binary_search(&at).unwrap_or(starts.len()) as u32;
        let mut blocks = Vec::new();
        for (block, &first) in starts.iter().enumerate() {
            let end = starts.get(block + 1).copied().unwrap_or(count as u32);
            let last = &function.instructions[end as usize - 1];
            let is_return = |at: usize| at < count && matches!(name(at), "ret" | "exit");
            let is_last = end as usize == count;
            let target = match (name(end as usize - 1), last.operands.first()) {
                ("bra", Some(&Operand::Label(label))) => {
                    let to = function.labels[label as usize];
                    (!leaves || !is_return(to as usize)).then(|| block_of(to))
                }
                ("ret" | "exit", _) => (!leaves || is_last).then_some(starts.len() as u32),
                _ => None,
            };
            let falls = !ends(end as usize - 1) || last.guard.is_some();
            let next = [target, falls.then_some(block as u32 + 1)];
            let (instructions, join) = (first..end, None);
            blocks.push(Block {
                instructions,
                next,
                join,
            });
        }
        let mut flow = Flow { blocks, steps: 0 };
        flow.find_joins();
        let has_none = flow.blocks.iter().any(|block| block.join.is_none());
        if !leaves && has_none {
            // Where all paths come to a trap, they meet on the way to it.
            let (mut trapped, end) = (flow.clone(), Some(flow.end()));
            let traps = trapped.blocks.iter_mut();
            traps
                .filter(|block| block.next == [None; 2])
                .for_each(|block| block.next[0] = end);
            trapped.find_joins();
            for (block, trapped) in flow.blocks.iter_mut().zip(trapped.blocks) {
                block.join = block.join.or(trapped.join);
            }
        }
        flow
    }

    /// The block after the last: the function's end.
    pub fn end(&self) -> u32 {
        self.blocks.len() as u32
    }

    fn find_joins(&mut self) {
        let mut edges: Vec<(u32, u32)> = Vec::new();
        for (block, node) in (0u32..).zip(&self.blocks) {
            edges.extend(node.next.iter().flatten().map(|&next| (next, block)));
        }
        let mut search = Search::new(self.blocks.len() + 1, &mut edges);
        search.visit(self.end());
        let nexts: Vec<[Option<u32>; 2]> = self.blocks.iter().map(|block| block.next).collect();
        let dominators = search.dominators(&nexts);
        for (block, dominator) in self.blocks.iter_mut().zip(dominators) {
            block.join = (dominator != NONE).then_some(dominator);
        }
        self.steps = search.steps;
    }
}

/// A search of dominators from the function's end, against the direction of control.
struct Search {
    /// The blocks before each, one after the other, and where those of each begin.
    before: Vec<u32>,
    begins: Vec<u32>,
    /// Blocks in the order in which they are met, and the number of each in it.
    order: Vec<u32>,
    number: Vec<u32>,
    /// Of blocks by number: the one that they were met from, the semi-dominator, and the forest of those done, with the
    /// block of the least semi-dominator on the way to its root.
    parent: Vec<u32>,
    semi: Vec<u32>,
    ancestor: Vec<u32>,
    best: Vec<u32>,
    steps: u64,
}

impl Search {
    fn new(count: usize, edges: &mut [(u32, u32)]) -> Search {
        edges.sort_unstable();
        let mut begins = vec![0; count + 1];
        for &(to, _) in edges.iter() {
            begins[to as usize + 1] += 1;
        }
        (0..count).for_each(|at| begins[at + 1] += begins[at]);
        Search {
            before: edges.iter().map(|&(_, from)| from).collect(),
            begins,
            order: Vec::new(),
            number: vec![NONE; count],
            parent: Vec::new(),
            semi: Vec::new(),
            ancestor: Vec::new(),
            best: Vec::new(),
            steps: 0,
        }
    }

    /// Meets all blocks from which `root` can be reached, in depth-first order.
    fn visit(&mut self, root: u32) {
        let mut open = vec![(root, NONE)];
        while let Some((block, parent)) = open.pop() {
            self.steps += 1;
            if self.number[block as usize] != NONE {
                continue;
            }
            let number = self.order.len() as u32;
            self.number[block as usize] = number;
            self.order.push(block);
            self.parent.push(parent);
            let [from, to] = [block, block + 1].map(|at| self.begins[at as usize] as usize);
            open.extend(self.before[from..to].iter().rev().map(|&before| (before, number)));
        }
        let count = self.order.len() as u32;
        self.semi = (0..count).collect();
        self.best = (0..count).collect();
        self.ancestor = vec![NONE; count as usize];
    }

    /// The block of the least semi-dominator between one and its root in the forest, whose ways are made shorter.
    fn evaluate(&mut self, number: u32) -> u32 {
        if self.ancestor[number as usize] == NONE {
            return number;
        }
        let mut way = Vec::new();
        let mut at = number;
        while self.ancestor[self.ancestor[at as usize] as usize] != NONE {
            self.steps += 1;
            way.push(at);
            at = self.ancestor[at as usize];
        }
        for at in way.into_iter().rev() {
            let above = self.ancestor[at as usize] as usize;
            let [mine, theirs] = [self.best[at as usize], self.best[above]];
            if self.semi[theirs as usize] < self.semi[mine as usize] {
                self.best[at as usize] = theirs;
            }
            self.ancestor[at as usize] = self.ancestor[above];
        }
        self.best[number as usize]
    }

    /// The immediate dominator of each block.
    fn dominators(&mut self, nexts: &[[Option<u32>; 2]]) -> Vec<u32> {
        let count = self.order.len();
        let mut dominator = vec![NONE; count];
        let mut waiting: Vec<Vec<u32>> = vec![Vec::new(); count];
        for number in (1..count as u32).rev() {
            let block = self.order[number as usize];
            for next in nexts[block as usize].iter().flatten() {
                self.steps += 1;
                let next = self.number[*next as usize];
                if next != NONE {
                    let found = self.evaluate(next);
                    let semi = self.semi[found as usize].min(self.semi[number as usize]);
                    self.semi[number as usize] = semi;
                }
            }
            waiting[self.semi[number as usize] as usize].push(number);
            let parent = self.parent[number as usize];
            self.ancestor[number as usize] = parent;
            for other in std::mem::take(&mut waiting[parent as usize]) {
                let found = self.evaluate(other);
                let is_less = self.semi[found as usize] < self.semi[other as usize];
                dominator[other as usize] = if is_less { found } else { parent };
            }
        }
        for number in 1..count {
            if dominator[number] != self.semi[number] {
                dominator[number] = dominator[dominator[number] as usize];
            }
        }
        let mut of_blocks = vec![NONE; self.number.len()];
        for number in 1..count {
            of_blocks[self.order[number] as usize] = self.order[dominator[number] as usize];
        }
        of_blocks.truncate(nexts.len());
        of_blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(body: &str) -> Flow {
        let text =
            format!(".version 8.0 .target sm_80 .entry k() {{ .reg .pred %p<2>; .reg .b32 %r<2>;\n{body}\nret; }}");
        let module = Module::read(&text).unwrap();
        Flow::of(&module, &module.kernels[0])
    }

    fn joins(flow: &Flow) -> Vec<Option<u32>> {
        flow.blocks.iter().map(|block| block.join).collect()
    }

    #[test]
    fn paths_meet_after_an_if() {
        let flow = flow("@%p0 bra A; mov.u32 %r0, 1; bra B; A: mov.u32 %r0, 2; B: mov.u32 %r1, %r0;");
        assert_eq!(joins(&flow), [Some(3), Some(3), Some(3), Some(4)]);
        assert_eq!(flow.blocks[0].next, [Some(2), Some(1)]);
    }

    #[test]
    fn paths_of_a_loop_with_two_exits_meet_where_both_lead() {
        // 0: L; 1: to B; 2: back; 3: to C; 4: B; 5: C.
        let flow = flow("L: @%p0 bra B; mov.u32 %r0, 1; @%p1 bra L; bra C; B: mov.u32 %r0, 2; C: mov.u32 %r1, 0;");
        assert_eq!(joins(&flow), [Some(4), Some(4), Some(4), Some(4), Some(5)]);
    }

    #[test]
    fn paths_that_all_come_to_a_trap_meet_before_it() {
        let flow = flow("@%p0 bra A; mov.u32 %r0, 1; A: mov.u32 %r1, 1; trap;");
        assert_eq!(joins(&flow), [Some(2), Some(2), Some(4), Some(4)]);
        assert_eq!(flow.blocks[2].next, [None; 2]);
    }

    #[test]
    fn what_never_ends_has_no_join() {
        let flow = flow("@%p0 bra E; L: mov.u32 %r0, 1; bra L; E: mov.u32 %r1, 1;");
        assert_eq!(joins(&flow), [Some(2), None, Some(3)]);
    }

    /// The definition, with sets: what all paths from a block go through.
    fn by_definition(flow: &Flow) -> Vec<Option<u32>> {
        let count = flow.blocks.len();
        let mut after: Vec<Vec<bool>> = vec![vec![true; count + 1]; count];
        after.push((0..=count).map(|block| block == count).collect());
        loop {
            let before = after.clone();
            for block in (0..count).rev() {
                let nexts = flow.blocks[block].next.iter().flatten();
                let all = |at: usize| nexts.clone().all(|&next| after[next as usize][at]);
                after[block] = (0..=count).map(|at| at == block || all(at)).collect();
            }
            if before == after {
                break;
            }
        }
        let ends = |block: usize| {
            let (mut seen, mut open) = (vec![false; count + 1], vec![block]);
            while let Some(at) = open.pop() {
                if !std::mem::replace(&mut seen[at], true) && at < count {
                    open.extend(flow.blocks[at].next.iter().flatten().map(|&next| next as usize));
                }
            }
            seen[count]
        };
        let size = |block: usize| after[block].iter().filter(|&&is| is).count();
        let nearest = |block: usize| {
            (0..=count)
                .filter(|&at| at != block && after[block][at])
                .max_by_key(|&at| size(at))
        };
        (0..count)
            .map(|block| ends(block).then(|| nearest(block)).flatten().map(|at| at as u32))
            .collect()
    }

    #[test]
    fn joins_are_what_the_definition_says() {
        let mut seed = 1u64;
        let mut below = |n: u64| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % n
        };
        for _ in 0..300 {
            let count = 1 + below(12);
            let mut text = String::new();
            for block in 0..count {
                text.push_str(&format!("L{block}: mov.u32 %r0, {block}; "));
                match below(4) {
                    0 => text.push_str(&format!("bra L{}; ", below(count))),
                    1 => text.push_str("@%p1 exit; "),
                    _ => text.push_str(&format!("@%p0 bra L{}; ", below(count))),
                }
            }
            let flow = flow(&text);
            // Post-dominance is of blocks from which the end is reached alone; others would say everything.
            let wanted = by_definition(&flow);
            let endless = (0..flow.blocks.len()).any(|block| flow.blocks[block].join.is_none());
            if !endless {
                assert_eq!(joins(&flow), wanted, "{text}");
            }
        }
    }

    /// Steps a block, of one `if` after the other, of one in the other, and of jumps to one place from everywhere.
    #[test]
    fn twenty_thousand_ifs_take_few_steps() {
        const N: u32 = 20_000;
        let flat: String = (0..N)
            .map(|n| format!("@%p0 bra L{n}; mov.u32 %r0, {n}; L{n}:\n"))
            .collect();
        let nested: String = (0..N).map(|n| format!("@%p0 bra L{n}; mov.u32 %r0, {n};\n")).collect();
        let ends: String = (0..N).rev().map(|n| format!("L{n}: mov.u32 %r0, {n};\n")).collect();
        let exits: String = (0..N).map(|n| format!("@%p0 bra E; mov.u32 %r0, {n};\n")).collect();
        // Each jumps into another place of a long chain.
        let mixed: String = (0..N)
            .map(|n| format!("@%p0 bra L{};\n", (n as u64 * 7_919) % N as u64))
            .collect();
        for (text, blocks) in [
            (flat, 2 * N + 1),
            (nested + &ends, 2 * N + 2),
            (exits + "E:", N + 1),
            (mixed + &ends, 2 * N + 1),
        ] {
            let flow = flow(&text);
            assert!(
                flow.blocks.len() as u32 >= blocks - 1,
                "{} of {blocks}",
                flow.blocks.len()
            );
            let each = flow.steps / u64::from(blocks);
            assert!(each <= 16, "{each} steps a block");
        }
    }
}
