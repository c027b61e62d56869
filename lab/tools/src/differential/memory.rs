//! Memory: loads and stores of each width and space, atomic operations, copies, addresses.

use flashcore_ptx::{Bound, Spelled, print};

use super::pool::{Kind, section};
use super::scalar::kind_of;
use super::writer::{BLOCK, COMMON, OWN, REACH, TABLE, THREADS, Writer, braced};

/// Bytes of one element.
fn bytes(kind: Kind) -> u32 {
    match kind {
        Kind::Int(bits) => bits / 8,
        Kind::F64 => 8,
        Kind::F16 | Kind::BF16 => 2,
        _ => 4,
    }
}

/// A register, or several as a vector.
fn one_or_list(registers: &[String]) -> String {
    match registers {
        [one] => one.clone(),
        all => braced(all),
    }
}

impl Writer {
    /// A hint for the cache, which changes no result: the policy that CUTLASS calls "evict normal".
    fn hint(&mut self, form: &Spelled, operands: &mut Vec<String>) {
        if form.has("L2::cache_hint") {
            let policy = self.register(Kind::Int(64));
            self.line(format!("mov.b64 {policy}, 0x1000000000000000;"));
            operands.push(policy);
        }
    }

    /// The address of an access of so many bytes, and whether it may be written to.
    fn address(&mut self, words: &[&str], size: u32, writes: bool) -> Option<String> {
        let within = |writer: &mut Writer, all: u32| size * writer.rng.below((all / size) as usize) as u32;
        let is = |space: &str| words.contains(&space);
        Some(if is("shared") || is("shared::cta") {
            format!("[%sh+{}]", within(self, OWN))
        } else if is("local") {
            let base = if self.one_in(2) { "local" } else { "%loc" };
            format!("[{base}+{}]", within(self, OWN))
        } else if is("const") {
            let base = if self.one_in(2) { "table" } else { "%con" };
            format!("[{base}+{}]", within(self, TABLE - 16 * THREADS))
        } else if is("param") || is("param::entry") {
            format!("[block+{}]", within(self, BLOCK))
        } else if is("shared::cluster") || is("param::func") {
            return None;
        } else if writes {
            format!("[%scr+{}]", within(self, OWN))
        } else if !is("global") && self.one_in(3) {
            format!("[%gsh+{}]", within(self, OWN))
        } else {
            // An entry of the pool a thread, or two.
            let at = section(Kind::Int(64)) + 8 * self.salt();
            debug_assert!(at < 3 * REACH);
            format!("[%in16+{}]", at + size * self.rng.below((16 / size) as usize) as u32)
        })
    }

    fn vector(words: &[&str]) -> u32 {
        words
            .iter()
            .find_map(|word| word.strip_prefix('v')?.parse().ok())
            .unwrap_or(1)
    }

    /// A load. None if its memory is none that programs have.
    pub(super) fn loads(&mut self, form: &Spelled) -> Option<()> {
        let words: Vec<&str> = form.modifiers().collect();
        let kind = kind_of(words.last()?)?;
        let count = Writer::vector(&words);
        let address = self.address(&words, count * bytes(kind), false)?;
        // Registers may be wider than what is loaded.
        let wide = match kind {
            Kind::Int(8 | 16) if self.one_in(4) => Kind::Int(32),
            Kind::Int(8 | 16 | 32) if self.one_in(6) => Kind::Int(64),
            other => other,
        };
        let registers = self.registers(count, wide);
        let mut operands = vec![one_or_list(&registers), address];
        self.hint(form, &mut operands);
        self.instruction(form, &operands);
        self.keep_all(wide, &registers);
        Some(())
    }

    /// A store, and what it wrote.
    pub(super) fn stores(&mut self, form: &Spelled) -> Option<()> {
        let words: Vec<&str> = form.modifiers().collect();
        let kind = kind_of(words.last()?)?;
        if words.iter().any(|word| word.starts_with("param") || *word == "async") {
            return None;
        }
        let count = Writer::vector(&words);
        let wide = match kind {
            Kind::Int(8 | 16) if self.one_in(4) => Kind::Int(32),
            other => other,
        };
        // Bits of NaN may differ, so that floats come from the pool.
        let is_float = !matches!(kind, Kind::Int(_));
        let values: Vec<String> = (0..count)
            .map(|_| if is_float { self.load(wide) } else { self.value(wide) })
            .collect();
        let size = count * bytes(kind);
        let is_global = words.contains(&"global")
            || !words
                .iter()
                .any(|word| ["shared", "shared::cta", "local", "shared::cluster"].contains(word));
        let place = self.place(16);
        let address = if is_global {
            self.area(place, u64::from(16 * THREADS), Kind::Int(8), Bound::default());
            format!("[%out16+{place}]")
        } else {
            self.address(&words, size, true)?
        };
        let mut operands = vec![address, one_or_list(&values)];
        self.hint(form, &mut operands);
        self.instruction(form, &operands);
        if !is_global {
            // All of the thread's own memory, of which it wrote a part.
            let (space, base) = if words.contains(&"local") {
                ("local", "local")
            } else {
                ("shared", "%sh")
            };
            self.own(space, base);
        }
        Some(())
    }

    /// Stores a thread's own memory of a space to the output.
    fn own(&mut self, space: &str, base: &str) {
        for part in (0..OWN).step_by(16) {
            let all = braced(&self.registers(4, Kind::Int(32)));
            let place = self.place(16);
            self.line(format!("ld.{space}.v4.b32 {all}, [{base}+{part}];"));
            self.line(format!("st.global.v4.b32 [%out16+{place}], {all};"));
            self.area(place, u64::from(16 * THREADS), Kind::Int(8), Bound::default());
        }
    }

    /// An atomic operation: on a thread's own memory, or, where the order does not matter and nothing is returned, on
    /// memory of all threads.
    pub(super) fn atomics(&mut self, form: &Spelled) -> Option<()> {
        let words: Vec<&str> = form.modifiers().collect();
        let has = |word: &str| words.contains(&word);
        let kind = kind_of(words.last()?)?;
        // Vectors are added in order, element by element: as the scalar form.
        if has("shared::cluster") || has("v2") || has("v4") || has("v8") {
            return None;
        }
        let is_shared = has("shared") || has("shared::cta");
        let is_float = !matches!(kind, Kind::Int(_));
        let (size, ordered) = (bytes(kind).max(4), is_float || has("inc") || has("dec"));
        let (value, ty) = (self.value(kind), self.moved(kind));
        if form.name() == "red" && !ordered && self.common + 8 <= COMMON && self.one_in(2) {
            let at = self.common;
            self.common += 8;
            if is_shared {
                let (base, found) = (self.register(Kind::Int(32)), self.register(kind));
                self.line(format!("mov.u32 {base}, common;"));
                self.instruction(form, &[format!("[{base}+{at}]"), value]);
                self.line("bar.sync 0;");
                self.line(format!("ld.shared.{ty} {found}, [{base}+{at}];"));
                self.keep(kind, &found, Bound::default());
            } else {
                // Read by the host.
                self.instruction(form, &[format!("[%com+{}]", OWN * THREADS + at), value]);
            }
            return Some(());
        }
        let at = size * self.rng.below((OWN / size) as usize) as u32;
        let (space, base) = if is_shared {
            ("shared", "%sh")
        } else {
            ("global", "%scr")
        };
        let before = self.value(kind);
        self.line(format!("st.{space}.{ty} [{base}+{at}], {before};"));
        let mut operands = vec![format!("[{base}+{at}]")];
        if has("cas") {
            operands.push(if self.one_in(2) { before } else { self.value(kind) });
        }
        operands.push(value);
        let results = self.registers(u32::from(form.name() == "atom"), kind);
        self.instruction(form, &[results.as_slice(), &operands].concat());
        self.keep_all(kind, &results);
        let after = self.register(kind);
        self.line(format!("ld.{space}.{ty} {after}, [{base}+{at}];"));
        self.keep(kind, &after, Bound::default());
        if is_float {
            // The memory is compared by its bits, and those of NaN may differ.
            let zero = self.register(Kind::Int(32));
            self.line(format!("mov.b32 {zero}, 0; st.{space}.b32 [{base}+{at}], {zero};"));
            if size == 8 {
                self.line(format!("st.{space}.b32 [{base}+{}], {zero};", at + 4));
            }
        }
        Some(())
    }

    /// A copy in the background to a thread's own shared memory, waited for.
    pub(super) fn copies(&mut self, form: &Spelled) -> Option<()> {
        let words: Vec<&str> = form.modifiers().collect();
        if ["bulk", "mbarrier", "reduce"].iter().any(|word| words.contains(word)) {
            return None;
        }
        let size = if words.contains(&"cg") || !words.contains(&"ca") {
            16
        } else {
            4 << self.rng.below(3)
        };
        let to = format!("[%sh+{}]", size * self.rng.below((OWN / size) as usize) as u32);
        let from = format!("[%in16+{}]", section(Kind::Int(32)) + 8 * self.salt());
        let is_copy = words.contains(&"global");
        let mut operands = vec![to, from, size.to_string()];
        if is_copy && self.one_in(2) {
            let count = self.register(Kind::Int(32));
            let most = self.rng.below(size as usize + 1);
            self.line(format!("min.u32 {count}, %lane, {most};"));
            operands.push(count);
        }
        self.hint(form, &mut operands);
        let is_whole = print(form) == "cp.async.wait_all";
        if is_copy {
            self.instruction(form, &operands);
        } else {
            operands.truncate(3);
            self.opcode("cp.async.cg.shared.global".to_string(), &operands);
        }
        if is_whole {
            self.instruction(form, &[]);
        } else {
            self.opcode("cp.async.commit_group".to_string(), &[]);
            self.opcode("cp.async.wait_group".to_string(), &["0".to_string()]);
        }
        self.own("shared", "%sh");
        Some(())
    }

    /// Conversions of addresses, and which space they are of.
    pub(super) fn addresses(&mut self, form: &Spelled) -> Option<()> {
        let words: Vec<&str> = form.modifiers().collect();
        let has = |word: &str| words.contains(&word);
        if form.name() == "isspacep" {
            let (p, address) = (self.register(Kind::Pred), if self.one_in(2) { "%gin" } else { "%gsh" });
            self.instruction(form, &[p.clone(), address.to_string()]);
            self.keep(Kind::Pred, &p, Bound::default());
            return Some(());
        }
        let spaces = [
            ("global", "%gin", "%in"),
            ("shared", "%gsh", ""),
            ("local", "", "%loc"),
            ("const", "", "%con"),
        ];
        let is_own = |space: &str| has(space) || space == "shared" && has("shared::cta");
        let (space, generic, own) = spaces.into_iter().find(|(space, ..)| is_own(space))?;
        let (converted, found) = (self.register(Kind::Int(64)), self.register(Kind::Int(32)));
        if has("to") {
            let from = if generic.is_empty() {
                let generic = self.register(Kind::Int(64));
                self.line(format!("cvta.{space}.u64 {generic}, {own};"));
                generic
            } else {
                generic.to_string()
            };
            self.instruction(form, &[converted.clone(), from]);
            self.line(format!("ld.{space}.b32 {found}, [{converted}];"));
        } else {
            let from = if own.is_empty() {
                let wide = self.register(Kind::Int(64));
                self.line(format!("cvt.u64.u32 {wide}, %sh;"));
                wide
            } else {
                own.to_string()
            };
            self.instruction(form, &[converted.clone(), from]);
            self.line(format!("ld.b32 {found}, [{converted}];"));
        }
        self.keep(Kind::Int(32), &found, Bound::default());
        Some(())
    }
}
