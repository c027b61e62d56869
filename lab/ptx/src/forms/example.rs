//! An instruction of each form, with operands that it takes: for an assembler, and to ask whether a form is executed.

use super::{Spelled, print};

/// What the registers of examples are declared as.
pub const EXAMPLE_REGISTERS: &str =
    ".reg .pred %p<300>; .reg .b16 %h<300>; .reg .b32 %r<300>; .reg .b64 %d<300>; .reg .b128 %q<300>;";

impl Spelled {
    /// An instruction of this form whose operands are [registers](EXAMPLE_REGISTERS), in a kernel with the label `END`
    /// and the parameter `k`. None for calls and for what they pass, which need their function.
    ///
    /// ```
    /// let form = flashcore_ptx::read("mad.wide.u16")?;
    /// assert_eq!(form.example().as_deref(), Some("mad.wide.u16 %r1, %h2, %h3, %r4;"));
    /// # Ok::<(), flashcore_ptx::Missing>(())
    /// ```
    pub fn example(&self) -> Option<String> {
        // They need what is around them: a call's parameters.
        if self.name() == "call" || (self.name() == "st" && self.modifiers().any(|word| word.starts_with("param"))) {
            return None;
        }
        let mut number = 0;
        let needed = (0..self.operands().len()).filter(|&at| !self.operands()[at].is_optional);
        let mut operands: Vec<String> = needed.map(|at| operand(self, at, &mut number)).collect::<Option<_>>()?;
        if self.has("L2::cache_hint") {
            operands.push("%d101".to_string());
        }
        if self.name() == "wgmma" && ["f16", "bf16"].contains(&self.modifiers().last().unwrap_or("")) {
            operands.push("1".to_string());
        }
        if self.has("multicast::cluster") {
            operands.insert(
                operands.len() - usize::from(self.has("L2::cache_hint")),
                "%h101".to_string(),
            );
        }
        if ["set", "setp"].contains(&self.name())
            && ["and", "or", "xor"].iter().any(|op| self.has(op))
            && operands.len() == 3
        {
            operands.push("%p99".to_string());
        }
        Some(format!("{} {};", print(self), operands.join(", ")))
    }
}

/// An operand's text. None if the modifiers do not say what it needs, which those of the table do.
fn operand(spelled: &Spelled, at: usize, number: &mut u32) -> Option<String> {
    let pattern = &spelled.operands()[at];
    let words: Vec<&str> = spelled.modifiers().collect();
    let mut register = |class: &str| {
        *number += 1;
        format!("%{class}{number}")
    };
    let types: Vec<u32> = words.iter().filter_map(|word| bits(word)).collect();
    let class = |bits: u32| match bits {
        1 => "p",
        8 | 16 => "h",
        32 => "r",
        64 => "d",
        _ => "q",
    };
    let last = types.last().copied().unwrap_or(32);
    let (mut count, ty) = match pattern.ty {
        None => (pattern.count, last),
        Some("first") => (0, *types.get(types.len().checked_sub(2)?)?),
        Some("twice") => (0, 2 * last),
        Some("num") => (words.iter().find_map(|word| word.strip_prefix('x')?.parse().ok())?, 32),
        Some("acc") => {
            let n = words
                .iter()
                .find_map(|word| word.strip_prefix("m64n")?.split('k').next()?.parse::<u32>().ok());
            (n? / if words[4] == "f16" { 4 } else { 2 }, 32)
        }
        Some(ty) => (pattern.count, bits(ty)?),
    };
    let letter = pattern.letter;
    if let ('D' | 'A', Some(vector)) = (
        letter,
        words.iter().find_map(|word| word.strip_prefix('v')?.parse().ok()),
    ) {
        count = vector;
    }
    if letter == 'A' && spelled.name() == "wgmma" {
        count = 0;
    }
    Some(match letter {
        'm' if words.iter().any(|word| word.starts_with("param")) && spelled.name() == "ld" => "[k]".to_string(),
        'm' => "[%d100]".to_string(),
        't' => {
            let n: usize = words.iter().find_map(|word| word.strip_suffix('d')?.parse().ok())?;
            format!("[%d100, {{{}}}]", ["%r100"; 5][..n].join(", "))
        }
        'i' => match spelled.name() {
            "fence" | "discard" | "applypriority" => "128",
            "tensormap" if words[0] == "cp_fenceproxy" => "128",
            "cp" if words.contains(&"global") => "16",
            "setmaxnreg" => "64",
            _ => "1",
        }
        .to_string(),
        'l' => "END".to_string(),
        'L' => {
            let n: usize = words.iter().find_map(|word| word.strip_suffix('d')?.parse().ok())?;
            format!("{{{}}}", ["%h100"; 5][..n - 2].join(", "))
        }
        // Which lane it is, and which are asked, is read in this way alone.
        'q' if spelled.name() == "elect" => format!("_|{}", register("p")),
        'a' if spelled.name() == "elect" => "-1".to_string(),
        'q' if spelled.name() == "match" => format!("{}|{}", register("r"), register("p")),
        'q' if words.iter().any(|word| ["f16x2", "bf16x2"].contains(word)) => {
            format!("{}|{}", register("p"), register("p"))
        }
        'D' | 'A' if count > 0 => {
            let all: Vec<String> = (0..count).map(|_| register(class(ty))).collect();
            format!("{{{}}}", all.join(", "))
        }
        'd' if spelled.name() == "mbarrier" && spelled.has("shared::cluster") => "_".to_string(),
        _ => register(if letter == 'p' { "p" } else { class(ty) }),
    })
}

/// Bits of a type.
fn bits(word: &str) -> Option<u32> {
    match word {
        "pred" => Some(1),
        "e4m3x2" | "e5m2x2" | "bf16" => Some(16),
        "f16x2" | "bf16x2" | "u16x2" | "s16x2" | "tf32" => Some(32),
        _ => word.strip_prefix(['b', 'u', 's', 'f'])?.parse().ok(),
    }
}
