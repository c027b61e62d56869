//! What threads do together: barriers, fences, products of matrices.

use flashcore_ptx::{Bound, Spelled, shape_of};

use super::pool::{Element, Kind, Values, section};
use super::writer::{MATRIX, THREADS, Writer, braced};

/// What an instruction's sums of fp16 and bf16 products may differ by from exact ones, of the sum of magnitudes
/// (`docs/simulator.md`). Of 17 terms each loses less than 2^-25 of the largest on Hopper, 2^-24 where one bit fewer is
/// kept; the result less than 2^-23 of itself; where 16 products are two sums of 8, that twice: 22 · 2^-24 at most, and
/// half an ulp for the simulator's own rounding. Magnitudes are those of normal numbers: subnormal operands count with
/// the exponent of the smallest one.
const PRODUCT_BOUND: f64 = 1.0 / (1u64 << 19) as f64;
/// The same of e4m3: 33 terms of which each loses less than 2^-13 of the largest, and the result as much of itself.
const E4M3_PRODUCT_BOUND: f64 = 34.0 / (1u64 << 13) as f64;

impl Writer {
    /// Barriers of a block and a warp: what is stored before them is read after them.
    pub(super) fn barriers(&mut self, form: &Spelled) -> Option<()> {
        if form.has("cluster") {
            return None;
        }
        if form.has("red") {
            return self.scalar(form);
        }
        if form.has("warp") {
            self.instruction(form, &["0xffffffff".to_string()]);
        } else if form.has("arrive") {
            let opcode = flashcore_ptx::print(form);
            self.line(format!("@%warp0 {opcode} 2, {THREADS};"));
            self.line(format!("@!%warp0 bar.sync 2, {THREADS};"));
            // Else the first warp may arrive a second time, at the next of these, before the others have arrived once:
            // two arrivals of one warp would complete the barrier.
            self.line("bar.sync 0;".to_string());
            self.opcodes.push(opcode);
        } else {
            // Each thread's word is read by its neighbour.
            let mine = self.value(Kind::Int(32));
            self.line(format!("bar.sync 0; st.shared.b32 [%sh], {mine};"));
            let mut operands = vec!["3".to_string()];
            operands.extend(self.one_in(2).then(|| THREADS.to_string()));
            self.instruction(form, &operands);
            let found = self.neighbours(32);
            self.line("bar.sync 0;");
            self.keep(Kind::Int(32), &found, Bound::default());
        }
        Some(())
    }

    /// What changes no value.
    pub(super) fn orders(&mut self, form: &Spelled) -> Option<()> {
        let has = |word: &str| form.has(word);
        if has("proxy") || has("mbarrier_init") || has("tensormap") {
            return None;
        }
        let operands = match form.name() {
            "membar" | "fence" => vec![],
            "nanosleep" => vec!["20".to_string()],
            "pmevent" => vec!["1".to_string()],
            "prefetch" | "prefetchu" => vec![if has("global") { "[%in]" } else { "[%gin]" }.to_string()],
            _ => return None,
        };
        self.instruction(form, &operands);
        Some(())
    }

    /// An mbarrier at which all threads arrive, and wait.
    pub(super) fn mbarriers(&mut self, form: &Spelled) -> Option<()> {
        let has = |word: &str| form.has(word);
        let excluded = "shared::cluster cluster expect_tx complete_tx arrive_drop pending_count relaxed";
        if excluded.split(' ').any(has) || self.barriers >= 32 {
            return None;
        }
        let (at, token) = (8 * self.barriers, self.register(Kind::Int(64)));
        self.barriers += 1;
        let done = self.register(Kind::Pred);
        let opcode = flashcore_ptx::print(form);
        // The form in its role, and usual ones in the others.
        let own = |is_own: bool, role: &str| {
            if is_own {
                opcode.clone()
            } else {
                format!("mbarrier.{role}.shared.b64")
            }
        };
        let init = own(has("init"), "init");
        let arrive = own(has("arrive") && !has("noComplete"), "arrive");
        let inval = own(has("inval"), "inval");
        let wait = own(has("test_wait") || has("try_wait"), "test_wait");
        let base = self.register(Kind::Int(32));
        self.line(format!("mov.u32 {base}, barriers; add.u32 {base}, {base}, {at};"));
        let address = |opcode: &str, writer: &mut Writer| {
            // Without a space the address is generic.
            if opcode.contains("shared") {
                return format!("[{base}]");
            }
            format!("[{}]", writer.generic(&base))
        };
        let arrivals = THREADS * if has("noComplete") { 2 } else { 1 };
        let place = address(&init, self);
        self.line(format!("@%first {init} {place}, {arrivals}; bar.sync 0;"));
        if has("noComplete") {
            let (first, place) = (self.register(Kind::Int(64)), address(&opcode, self));
            self.line(format!("{opcode} {first}, {place}, 1;"));
        }
        let mine = self.value(Kind::Int(32));
        self.line(format!("st.shared.b32 [%sh], {mine};"));
        let place = address(&arrive, self);
        self.line(format!("{arrive} {token}, {place};"));
        let place = address(&wait, self);
        let last = if wait.contains("parity") {
            "0".to_string()
        } else {
            token
        };
        let label = format!("WAIT{}", self.barriers);
        self.line(format!(
            "{label}: {wait} {done}, {place}, {last}; @!{done} bra {label};"
        ));
        let found = self.neighbours(33);
        let place = address(&inval, self);
        self.line(format!("bar.sync 0; @%first {inval} {place};"));
        self.keep(Kind::Int(32), &found, Bound::default());
        self.opcodes.extend([init, arrive, wait, inval, opcode]);
        Some(())
    }

    /// The word that another thread has stored in shared memory.
    fn neighbours(&mut self, by: u32) -> String {
        let [theirs, found] = [self.register(Kind::Int(32)), self.register(Kind::Int(32))];
        self.line(format!(
            "xor.b32 {theirs}, %me, {by}; shl.b32 {theirs}, {theirs}, 6; add.u32 {theirs}, {theirs}, %shall;"
        ));
        self.line(format!("ld.shared.b32 {found}, [{theirs}];"));
        found
    }

    /// The generic address of one of shared memory.
    fn generic(&mut self, address: &str) -> String {
        let wide = self.register(Kind::Int(64));
        self.line(format!(
            "cvt.u64.u32 {wide}, {address}; cvta.shared.u64 {wide}, {wide};"
        ));
        wide
    }

    /// Matrices of 8 by 8 between lanes and shared memory.
    pub(super) fn tiles(&mut self, form: &Spelled) -> Option<()> {
        let mut words = form.modifiers();
        let count = words.find_map(|word| word.strip_prefix('x')?.parse::<u32>().ok())?;
        if form.name() == "stmatrix" {
            // Each lane's row is in its own memory, which it reads afterwards.
            let values: Vec<String> = (0..count).map(|_| self.value(Kind::Int(32))).collect();
            let of_space = form.has("shared") || form.has("shared::cta");
            let row = if of_space { "[%sh]" } else { "[%gsh]" };
            self.line("bar.warp.sync 0xffffffff;");
            self.instruction(form, &[row.to_string(), braced(&values)]);
            let found = self.registers(4, Kind::Int(32));
            let list = braced(&found);
            self.line(format!("bar.warp.sync 0xffffffff; ld.shared.v4.b32 {list}, [%sh];"));
            self.keep_all(Kind::Int(32), &found);
            return Some(());
        }
        let all = self.registers(count, Kind::Int(32));
        let row = self.register(Kind::Int(32));
        // Rows of the warp's own, in another order for each lane.
        let turn = self.rng.below(32);
        self.line(format!(
            "xor.b32 {row}, %me, {turn}; mul.lo.u32 {row}, {row}, {MATRIX};"
        ));
        let base = self.register(Kind::Int(32));
        self.line(format!("mov.u32 {base}, matrix; add.u32 {row}, {row}, {base};"));
        // Without a space the address is generic.
        let address = if form.has("shared") || form.has("shared::cta") {
            row
        } else {
            self.generic(&row)
        };
        self.instruction(form, &[braced(&all), format!("[{address}]")]);
        self.keep_all(Kind::Int(32), &all);
        Some(())
    }

    /// `mma` and `wmma.mma`, the latter with loads and stores around it.
    pub(super) fn products(&mut self, form: &Spelled) -> Option<()> {
        let words: Vec<&str> = form.modifiers().collect();
        let types: Vec<&str> = words
            .iter()
            .copied()
            .filter(|word| operand_type(word).is_some())
            .collect();
        let [d, a, b, c] = match types[..] {
            [d, a, b, c] => [d, a, b, c],
            [d, c] => [d, "f16", "f16", c],
            _ => return None,
        };
        let (shape, [m, n, k]) = words.iter().find_map(|word| Some((*word, shape_of(word)?)))?;
        let values = [Values::Small, Values::Unit, Values::Unit, Values::Odd][self.rng.below(4)];
        let kind = |ty: &str| match operand_type(ty) {
            Some(Some(element)) => Kind::Matrix(element, values),
            _ => Kind::Int(32),
        };
        let of_8_bits = a.starts_with('e');
        let share = if of_8_bits { E4M3_PRODUCT_BOUND } else { PRODUCT_BOUND };
        let is_close = values == Values::Unit && kind(a) != Kind::Int(32) && d != "f64";
        let bound = Bound {
            absolute: if is_close { share * f64::from(1 + k) } else { 0.0 },
            // The result's rounding, on either side.
            relative: if is_close && d == "f16" { 2f64.powi(-10) } else { 0.0 },
        };
        let result = match d {
            "f16" => Kind::F16x2,
            "f32" => Kind::F32,
            "f64" => Kind::F64,
            _ => Kind::Int(32),
        };
        if form.name() == "wmma" {
            let parts = [d, a, b, c].map(|ty| (ty, kind(ty)));
            return self.opaque(form, (shape, [m, n, k]), parts, (result, bound));
        }
        let parts: Vec<(Kind, u32, bool)> = form
            .operands()
            .iter()
            .zip([d, a, b, c])
            .map(|(p, ty)| (kind(ty), p.count, ty == "tf32"))
            .collect();
        let lists: Vec<Vec<String>> = parts
            .iter()
            .enumerate()
            .map(|(at, &(kind, count, is_bits))| {
                let one = |_| match at {
                    0 => self.register(result),
                    _ if is_bits => self.load_bits(kind),
                    _ => self.load(kind),
                };
                (0..count).map(one).collect()
            })
            .collect();
        let texts: Vec<String> = lists.iter().map(|list| braced(list)).collect();
        self.instruction(form, &texts);
        for register in &lists[0] {
            self.store(result, register, bound);
        }
        Some(())
    }

    /// `wmma`: fragments are loaded from the pool and stored to the output.
    fn opaque(
        &mut self,
        form: &Spelled,
        (shape, [m, n, k]): (&str, [u32; 3]),
        parts: [(&str, Kind); 4],
        (result, bound): (Kind, Bound),
    ) -> Option<()> {
        let mut layouts = form.modifiers().filter(|word| ["row", "col"].contains(word));
        let [a_layout, b_layout] = [layouts.next()?, layouts.next()?];
        let counts: Vec<u32> = form.operands().iter().map(|pattern| pattern.count).collect();
        let bytes = |ty: &str| match ty {
            "f64" => 8,
            "f32" | "s32" | "tf32" => 4,
            "f16" | "bf16" => 2,
            _ => 1,
        };
        // Fragments of integers and of halves are words.
        let held = |ty: &str, kind| match ty {
            "f32" | "f64" => kind,
            _ => Kind::Int(32),
        };
        let c_layout = ["row", "col"][self.rng.below(2)];
        let dims = [[m, k], [k, n], [m, n]];
        let mut lists = Vec::new();
        let named = [("a", a_layout, 1usize), ("b", b_layout, 2), ("c", c_layout, 3)];
        for ((name, layout, at), [rows, columns]) in named.into_iter().zip(dims) {
            let (ty, kind) = parts[at];
            let width = if layout == "row" { columns } else { rows };
            // A stride is a multiple of 16 bytes, and addresses of 32.
            let stride = width.next_multiple_of(16 / bytes(ty)) + 16 / bytes(ty) * self.rng.below(3) as u32;
            let at_least = section(kind) + 32 * self.rng.below(64) as u32;
            let registers = self.registers(counts[at], held(ty, kind));
            let base = self.register(Kind::Int(64));
            let is_generic = self.one_in(2);
            self.line(format!("ld.param.u64 {base}, [pool];"));
            if !is_generic {
                self.line(format!("cvta.to.global.u64 {base}, {base};"));
            }
            let space = if is_generic { "" } else { ".global" };
            let opcode = format!("wmma.load.{name}.sync.aligned.{layout}.{shape}{space}.{ty}");
            let mut operands = vec![braced(&registers), format!("[{base}+{at_least}]")];
            if stride != width || self.one_in(2) {
                operands.push(stride.to_string());
            }
            self.opcode(opcode, &operands);
            lists.push(registers);
        }
        lists.insert(0, self.registers(counts[0], held(parts[0].0, result)));
        let texts: Vec<String> = lists.iter().map(|list| braced(list)).collect();
        self.instruction(form, &texts);
        // Each warp has its own matrix of 2 KiB at most.
        let place = self.place(32);
        let [base, warp] = [64, 32].map(|bits| self.register(Kind::Int(bits)));
        let size = m * n * bytes(parts[0].0);
        self.line(format!(
            "shr.u32 {warp}, %me, 5; ld.param.u64 {base}, [output]; cvta.to.global.u64 {base}, {base};"
        ));
        self.line(format!("mad.wide.u32 {base}, {warp}, {size}, {base};"));
        let layout = ["row", "col"][self.rng.below(2)];
        let opcode = format!("wmma.store.d.sync.aligned.{layout}.{shape}.global.{}", parts[0].0);
        let width = if layout == "row" { n } else { m };
        self.opcode(
            opcode,
            &[format!("[{base}+{place}]"), texts[0].clone(), width.to_string()],
        );
        self.area(place, u64::from(2 * size), result, bound);
        Some(())
    }
}

/// The element of a type of a product's operand, if it is one of floats.
fn operand_type(word: &str) -> Option<Option<Element>> {
    Some(match word {
        "f16" => Some(Element::F16),
        "bf16" => Some(Element::BF16),
        "tf32" | "f32" => Some(Element::F32),
        "f64" => Some(Element::F64),
        "e4m3" => Some(Element::E4M3),
        "e5m2" => Some(Element::E5M2),
        "s8" | "u8" | "s32" => None,
        _ => return None,
    })
}
