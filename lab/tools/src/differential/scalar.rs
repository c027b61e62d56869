//! Instructions of one thread, with operands of the types that their rows have.

use flashcore_ptx::{Bound, Spelled};

use super::pool::Kind;
use super::writer::{THREADS, Writer};

/// What a word of an opcode says of a value, if it is a type.
pub(super) fn kind_of(word: &str) -> Option<Kind> {
    Some(match word {
        "pred" => Kind::Pred,
        "f16" => Kind::F16,
        "bf16" => Kind::BF16,
        "f16x2" => Kind::F16x2,
        "bf16x2" => Kind::BF16x2,
        "f32" => Kind::F32,
        "f64" => Kind::F64,
        "tf32" | "u16x2" | "s16x2" => Kind::Int(32),
        "e4m3x2" | "e5m2x2" => Kind::Int(16),
        _ => match word.strip_prefix(['b', 'u', 's'])?.parse().ok()? {
            bits @ (8 | 16 | 32 | 64) => Kind::Int(bits),
            _ => return None,
        },
    })
}

/// Instructions that all threads of a warp or block execute together.
const TOGETHER: [&str; 8] = [
    "activemask",
    "bar",
    "barrier",
    "match",
    "movmatrix",
    "redux",
    "shfl",
    "vote",
];

impl Writer {
    /// Writes an instruction with results in registers, and operands as its row has them. None if they are of other
    /// kinds.
    pub(super) fn scalar(&mut self, form: &Spelled) -> Option<()> {
        let words: Vec<&str> = form.modifiers().collect();
        let types: Vec<Kind> = words.iter().filter_map(|word| kind_of(word)).collect();
        let &last = types.last()?;
        let has = |word: &str| words.contains(&word);
        let is_pair = matches!(last, Kind::F16x2 | Kind::BF16x2);
        let is_joined = ["and", "or", "xor"].iter().any(|word| has(word));
        let bound = form.bound();
        let is_quotient = ["div", "rem"].contains(&form.name());
        let is_field = ["bfe", "bfi"].contains(&form.name());
        // Neither zeros to divide by nor numbers for pairs.
        let is_packed = is_quotient || has("s16x2") || has("u16x2");
        let (mut operands, mut results) = (Vec::new(), Vec::new());
        let mut is_guarded = bound.is_exact() && self.one_in(8);
        if ["addc", "subc", "madc"].contains(&form.name()) {
            self.carry();
            is_guarded = false;
        }
        // Of a guarded `set` ptxas 13.0 converts the old value where the guard does not hold, against PTX ISA 9.0,
        // "Predicated Execution".
        is_guarded &= !has("cc") && form.name() != "set" && !TOGETHER.contains(&form.name());
        for (at, pattern) in form.operands().iter().enumerate() {
            let kind = match (pattern.ty, form.name()) {
                (None, _) => last,
                (_, "cvt") if at == 0 && !has("pack") => types[0],
                (Some("first"), _) => types[types.len().saturating_sub(2)],
                (Some("twice"), _) => match last {
                    Kind::Int(bits) => Kind::Int(2 * bits),
                    other => other,
                },
                (Some("u32"), _) if pattern.letter == 'a' => Kind::Shift,
                (Some(ty), _) => kind_of(ty)?,
            };
            let kind = match (form.name(), kind) {
                ("sin" | "cos", Kind::F32) if pattern.letter == 'a' => Kind::Angle,
                ("div", Kind::F32) if pattern.letter == 'a' && !bound.is_exact() => Kind::Mid,
                (_, kind) => kind,
            };
            if TOGETHER.contains(&form.name()) && pattern.letter == 'a' {
                let is_there = !pattern.is_optional || self.one_in(2);
                operands.extend(is_there.then(|| self.together(form, at, kind)));
                continue;
            }
            match pattern.letter {
                'p' if pattern.is_optional && !(is_joined && ["set", "setp"].contains(&form.name())) => {}
                'p' => {
                    let p = self.value(Kind::Pred);
                    let is_negated = (form.name() == "setp" || TOGETHER.contains(&form.name())) && self.one_in(2);
                    operands.push(if is_negated { format!("!{p}") } else { p });
                }
                _ if pattern.is_optional => {}
                'a' => {
                    // Of positions beyond the register ptxas 13.0 computes something else than the GPU.
                    let most = if is_field { 16 } else { 64 };
                    let operand = match kind {
                        // The manual has places from 0 to 31 alone.
                        Kind::Int(32) if form.name() == "fns" && operands.len() == 2 => self.masked(kind, 31),
                        Kind::Int(16 | 32 | 64) | Kind::Shift if operands.len() > 1 && !is_packed && self.one_in(8) => {
                            self.rng.below(most).to_string()
                        }
                        Kind::Int(_) if is_quotient && operands.len() == 2 => self.divisor(kind),
                        // The manual restricts them to 8 bits.
                        Kind::Shift if is_field => self.masked(kind, 255),
                        // The sign of a result that is NaN may be either.
                        Kind::F32 | Kind::F64 if form.name() == "copysign" => self.load(kind),
                        _ => self.value(kind),
                    };
                    operands.push(operand);
                }
                'd' => {
                    let register = self.register(kind);
                    operands.push(register.clone());
                    results.push((kind, register));
                }
                'q' => {
                    let register = self.register(kind);
                    let is_single = matches!(last, Kind::F16 | Kind::BF16);
                    let other = (is_pair || !is_single && self.one_in(2)).then(|| self.register(Kind::Pred));
                    operands.push(
                        other
                            .as_ref()
                            .map_or(register.clone(), |other| format!("{register}|{other}")),
                    );
                    results.push((kind, register));
                    results.extend(other.map(|other| (Kind::Pred, other)));
                }
                'i' => operands.push(self.rng.below(256).to_string()),
                _ => return None,
            }
        }
        if results.is_empty() {
            return None;
        }
        if is_guarded && results.iter().all(|(kind, _)| *kind != Kind::Pred) {
            for (kind, register) in results.clone() {
                let before = self.load(kind);
                let ty = self.moved(kind);
                self.line(format!("mov.{ty} {register}, {before};"));
            }
            let p = self.value(Kind::Pred);
            let negated = if self.one_in(2) { "!" } else { "" };
            let opcode = flashcore_ptx::print(form);
            self.line(format!("@{negated}{p} {opcode} {};", operands.join(", ")));
            self.opcodes.push(opcode);
        } else {
            self.instruction(form, &operands);
        }
        if has("cc") {
            let carry = self.register(Kind::Int(32));
            self.line(format!("addc.u32 {carry}, 0, 0;"));
            results.push((Kind::Int(32), carry));
        }
        // What a policy is, PTX leaves open: nothing may depend on it ("createpolicy": "opaque").
        if form.name() == "createpolicy" {
            return Some(());
        }
        for (kind, register) in results {
            self.keep(kind, &register, rounded(bound, kind));
        }
        Some(())
    }

    /// A value that threads pass together: who takes part, a barrier's number and its threads, lanes of a segment.
    fn together(&mut self, form: &Spelled, at: usize, kind: Kind) -> String {
        match (form.name(), at) {
            ("bar" | "barrier", 1) => "1".to_string(),
            ("bar" | "barrier", _) => THREADS.to_string(),
            ("match" | "redux" | "shfl" | "vote", _) if at + 1 == form.operands().len() => "0xffffffff".to_string(),
            ("shfl", 2) if self.one_in(2) => self.rng.below(32).to_string(),
            ("shfl", 2) => self.value(Kind::Shift),
            ("shfl", 3) => {
                let segment = 32u32 >> self.rng.below(4);
                let clamp = (32 - segment) << 8 | if form.has("up") { 0 } else { 31 };
                clamp.to_string()
            }
            // Few values, so that lanes have equal ones.
            ("match", _) => {
                let mask = [0, 1, 3][self.rng.below(3)];
                self.masked(kind, mask)
            }
            _ => self.value(kind),
        }
    }

    /// Some bits of a value.
    fn masked(&mut self, kind: Kind, mask: u32) -> String {
        let (whole, part, ty) = (self.value(kind), self.register(kind), self.moved(kind));
        self.line(format!("and.{ty} {part}, {whole}, {mask};"));
        part
    }

    /// A value that is not zero.
    fn divisor(&mut self, kind: Kind) -> String {
        let (value, found, p) = (self.value(kind), self.register(kind), self.register(Kind::Pred));
        let ty = self.moved(kind);
        self.line(format!("setp.eq.{ty} {p}, {value}, 0;"));
        self.line(format!("selp.{ty} {found}, 3, {value}, {p};"));
        found
    }

    /// Sets the carry flag by a sum.
    fn carry(&mut self) {
        let [a, b, sum] = [
            self.load(Kind::Int(32)),
            self.load(Kind::Int(32)),
            self.register(Kind::Int(32)),
        ];
        self.line(format!("add.cc.u32 {sum}, {a}, {b};"));
    }

    /// The type of a move between registers of a kind.
    pub(super) fn moved(&self, kind: Kind) -> &'static str {
        match kind {
            Kind::Pred => "pred",
            Kind::Int(8 | 16) | Kind::F16 | Kind::BF16 => "b16",
            Kind::F32 => "f32",
            Kind::F64 => "f64",
            Kind::Int(64) => "b64",
            _ => "b32",
        }
    }

    /// `mov` between registers, joining and splitting them.
    pub(super) fn moves(&mut self, form: &Spelled) -> Option<()> {
        let kind = form.modifiers().last().and_then(kind_of)?;
        // Lists are of untyped registers.
        let part = match form.modifiers().last() {
            Some("b32") => Kind::Int(16),
            Some("b64") => Kind::Int(32),
            _ => Kind::Pred,
        };
        match self.rng.below(3) {
            0 if part != Kind::Pred => {
                let (a, b, d) = (self.value(part), self.value(part), self.register(kind));
                self.instruction(form, &[d.clone(), format!("{{{a}, {b}}}")]);
                self.keep(kind, &d, Bound::default());
            }
            1 if part != Kind::Pred => {
                let (a, d, e) = (self.value(kind), self.register(part), self.register(part));
                let d_or_sink = if self.one_in(4) { "_".to_string() } else { d.clone() };
                self.instruction(form, &[format!("{{{d_or_sink}, {e}}}"), a]);
                self.keep(part, &e, Bound::default());
                if d_or_sink == d {
                    self.keep(part, &d, Bound::default());
                }
            }
            _ => {
                let (a, d) = (self.value(kind), self.register(kind));
                self.instruction(form, &[d.clone(), a]);
                self.keep(kind, &d, Bound::default());
            }
        }
        Some(())
    }
}

/// A bound with half a unit for the simulator's own rounding, and the smallest numbers, where a unit is larger.
fn rounded(bound: Bound, kind: Kind) -> Bound {
    if bound.is_exact() {
        return bound;
    }
    let (half_unit, smallest) = match kind {
        Kind::F16 | Kind::F16x2 => (2f64.powi(-11), 2f64.powi(-24)),
        Kind::BF16 | Kind::BF16x2 => (2f64.powi(-8), 2f64.powi(-133)),
        // Results may be flushed to zero below the smallest normal number.
        Kind::F32 => (2f64.powi(-24), f64::from(f32::MIN_POSITIVE)),
        _ => (f64::EPSILON, f64::MIN_POSITIVE),
    };
    Bound {
        relative: bound.relative + half_unit,
        absolute: (bound.absolute + if bound.absolute > 0.0 { half_unit } else { 0.0 }).max(smallest),
    }
}
