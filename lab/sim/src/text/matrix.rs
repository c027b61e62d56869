//! Products of matrices that the kernel language has not: `mma.sync` of other types and shapes, `wmma`, and `wgmma` of
//! other types.

use flashcore_ir::Operand;
use flashcore_ir::inst::{Inst, WgmmaInput};
use flashcore_ir::types::{Reg, RegClass};
use flashcore_ptx::{Operand as Written, shape_of};

use super::Reader;
use super::cold::{Unlike, What};
use super::numbers::{Mode, Ty};
use super::operands::Filled;
use crate::report::Class;

/// Which of a product's matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    A,
    B,
    C,
}

/// The elements that registers hold: of a matrix of a product of `m` × `n` × `k`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fragment {
    pub(crate) part: Part,
    pub(crate) shape: [u32; 3],
    pub(crate) element: Ty,
    /// Whether PTX leaves open which element is where.
    pub(crate) is_opaque: bool,
    /// Of `mma.m8n8k4` of f16, where each of four groups of lanes has its own product: whether its rows are together.
    pub(crate) quads: Option<bool>,
    pub(crate) registers: u32,
}

impl Fragment {
    /// Rows and columns; of several products the matrices stand below each other.
    pub(crate) fn dims(&self) -> [u32; 2] {
        let ([m, n, k], count) = (self.shape, if self.quads.is_some() { 4 } else { 1 });
        match self.part {
            Part::A => [count * m, k],
            Part::B => [count * k, n],
            Part::C => [count * m, n],
        }
    }

    /// As [`Self::place`] where each group of lanes has its own product (PTX ISA, "Matrix Fragments for mma.m8n8k4 with
    /// .f16 floating point type").
    fn place_in_quad(&self, lane: u32, number: u32, is_row_major: bool) -> (u32, u32) {
        let (near, upper, which) = (lane % 4, lane / 16 * 4, lane % 16 / 4);
        match self.part {
            Part::A if is_row_major => (8 * which + near + upper, number),
            Part::A => (8 * which + number + upper, near),
            Part::B if is_row_major => (4 * which + near, number + upper),
            Part::B => (4 * which + number, near + upper),
            Part::C if self.element == Ty::F32 => {
                let row = lane % 2 + (number & 2) + upper;
                (8 * which + row, (number & 4) + (lane & 2) + number % 2)
            }
            Part::C => (8 * which + near + upper, number),
        }
    }

    /// Whether so many registers of the warp are the matrix, or several times that.
    fn check(&self) -> Filled<()> {
        let (held, [rows, columns]) = (32 * self.registers * self.element.in_register(), self.dims());
        let fits = held == rows * columns || self.is_opaque && held > 0 && held.is_multiple_of(rows * columns);
        let why = || format!("{} registers do not hold {rows} x {columns} elements", self.registers);
        fits.then_some(()).ok_or_else(why)
    }

    /// The row and the column of an element of a register of a lane; where PTX leaves it open, of one of two layouts.
    pub(crate) fn place(&self, lane: u32, register: u32, element: u32, is_other: bool) -> (u32, u32) {
        let (each, [rows, columns]) = (self.element.in_register(), self.dims());
        if self.is_opaque {
            // Some fragments hold each element more than once.
            let slots = 32 * self.registers;
            let slot = lane * self.registers + register;
            // Lanes and registers of the other layout are permuted: their number is a power of two.
            let slot = if is_other { (5 * slot + 3) % slots } else { slot };
            let number = slot * each + element;
            let number = number % (rows * columns);
            return (number / columns, number % columns);
        }
        if let Some(is_row_major) = self.quads {
            return self.place_in_quad(lane, register * each + element, is_row_major);
        }
        // PTX ISA, "Matrix Fragments for mma": groups of four lanes.
        let (group, within) = (lane / 4, lane % 4);
        let tall = u32::from(self.shape[0] == 16);
        match self.part {
            Part::A => {
                let half = register / (1 + tall);
                (group + 8 * (register & tall), within * each + element + 4 * each * half)
            }
            Part::B => (within * each + element + 4 * each * register, group),
            Part::C => {
                let number = register * each + element;
                (group + 8 * (number / 2), within * 2 + number % 2)
            }
        }
    }
}

/// `d = a·b + c`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product {
    pub(crate) a: Fragment,
    pub(crate) b: Fragment,
    pub(crate) c: Fragment,
    pub(crate) d: Fragment,
    pub(crate) saturates: bool,
    /// Of f64.
    pub(crate) mode: Mode,
}

/// The types of a warpgroup's product.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Types {
    pub(crate) a: Ty,
    pub(crate) b: Ty,
    /// Of the sums.
    pub(crate) d: Ty,
    pub(crate) saturates: bool,
}

impl Types {
    /// Of a product that the kernel language has.
    pub(crate) fn of(input: WgmmaInput) -> Types {
        let a = match input {
            WgmmaInput::F16 => Ty::Half(false),
            WgmmaInput::BF16 => Ty::Half(true),
            WgmmaInput::E4M3 => Ty::Byte(false),
        };
        let (b, d, saturates) = (a, Ty::F32, false);
        Types { a, b, d, saturates }
    }

    /// Steps of k that an instruction takes: 32 bytes of a row.
    pub(crate) fn k(&self) -> u32 {
        32 / self.a.bytes()
    }
}

/// A matrix from memory, or to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Move {
    pub(crate) fragment: Fragment,
    pub(crate) is_row_major: bool,
    pub(crate) access: super::cold::Access,
    /// Registers for an address and for an element.
    pub(crate) scratch: [Reg; 2],
}

impl Reader<'_> {
    fn list(&mut self, written: &Written) -> Filled<Vec<Reg>> {
        match written {
            Written::List(items) => items.iter().map(|item| self.register(item)).collect(),
            one => Ok(vec![self.register(one)?]),
        }
    }

    /// Reads `mma` and `wmma`.
    pub(super) fn matrix(&mut self, name: &str, words: &[&str], operands: &[Written]) -> Filled<()> {
        let shape = words
            .iter()
            .find_map(|word| shape_of(word))
            .ok_or("its shape is not read")?;
        let types: Vec<Ty> = words.iter().filter_map(|word| Ty::of(word)).collect();
        if let (true, Some(verb)) = (name == "wmma", words.first().filter(|word| **word != "mma")) {
            let part = match words.get(1) {
                Some(&"a") => Part::A,
                Some(&"b") => Part::B,
                _ => Part::C,
            };
            return self.matrix_move(*verb == "store", part, shape, words, operands);
        }
        let [d, a, b, c] = operands else {
            return Err("it has four operands".to_string());
        };
        let [d_type, a_type, b_type, c_type] = match types[..] {
            [d, a, b, c] => [d, a, b, c],
            [d, c] => [d, Ty::Half(false), Ty::Half(false), c],
            _ => return Err("its types are not read".to_string()),
        };
        let lists = [d, a, b, c].map(|list| self.list(list));
        let [d, a, b, c] = lists;
        let (d, a, b, c) = (d?, a?, b?, c?);
        let is_quads = shape == [8, 8, 4] && name == "mma" && a_type == Ty::Half(false);
        let layouts: Vec<bool> = words
            .iter()
            .filter(|word| ["row", "col"].contains(word))
            .map(|word| *word == "row")
            .collect();
        let fragment = |part, element, registers: &[Reg]| Fragment {
            part,
            shape,
            element,
            is_opaque: name == "wmma",
            quads: layouts.get(usize::from(part == Part::B)).copied().filter(|_| is_quads),
            registers: registers.len() as u32,
        };
        let product = Product {
            a: fragment(Part::A, a_type, &a),
            b: fragment(Part::B, b_type, &b),
            c: fragment(Part::C, c_type, &c),
            d: fragment(Part::C, d_type, &d),
            saturates: words.contains(&"satfinite"),
            mode: Mode::of(words),
        };
        let all = [&product.a, &product.b, &product.c, &product.d];
        all.into_iter().try_for_each(Fragment::check)?;
        let reads = [a, b, c].concat().into_iter().map(Operand::Reg).collect();
        self.cold(What::Product(product), Class::Tensor, d, reads);
        Ok(())
    }

    /// Reads a warpgroup's product: one of the kernel language with as many registers, and its own types.
    pub(super) fn group_product(&mut self, words: &[&str], operands: &[Written]) -> Filled<()> {
        let types: Vec<Ty> = words.iter().filter_map(|word| Ty::of(word)).collect();
        let (&[d, a, b], Some([_, n, _])) = (&types[..], words.iter().find_map(|word| shape_of(word))) else {
            return Err("its types are not read".to_string());
        };
        let saturates = words.contains(&"satfinite");
        let mut operands = operands.to_vec();
        if matches!(a, Ty::Int(..)) {
            // Integers have no signs to choose.
            operands.extend([1, 1].map(Written::Integer));
        }
        let (mut why, first) = ("it has another number of operands".to_string(), self.items.len());
        let forms = super::forms::products(n / d.in_register()).map(Inst::Wgmma);
        for form in forms.filter(|form| form.clone().slots().len() == operands.len()) {
            let unlike = Unlike {
                types: Some(Types { a, b, d, saturates }),
                ..Unlike::default()
            };
            match self.like(form, &operands, unlike) {
                Ok(()) => return Ok(()),
                Err(reason) => why = reason,
            }
            self.items.truncate(first);
            self.after.clear();
        }
        Err(why)
    }

    fn matrix_move(
        &mut self,
        writes: bool,
        part: Part,
        shape: [u32; 3],
        words: &[&str],
        operands: &[Written],
    ) -> Filled<()> {
        let element = Ty::last(words)?;
        let (list, address) = if writes {
            (operands.get(1), operands.first())
        } else {
            (operands.first(), operands.get(1))
        };
        let (Some(list), Some(address)) = (list, address) else {
            return Err("it has a list and an address".to_string());
        };
        let registers = self.list(list)?;
        let fragment = Fragment {
            part,
            shape,
            element,
            is_opaque: true,
            quads: None,
            registers: registers.len() as u32,
        };
        fragment.check()?;
        let is_row_major = words.contains(&"row");
        let (base, offset) = self.place(address)?;
        let mut access = self.access_of(words, writes, offset)?;
        (access.size, access.signed) = (element.bytes(), false);
        access.scratch = self.scratch(&access, registers.len());
        let stride = match operands.get(2) {
            Some(stride) => self.operand(stride, Ty::Int(32, false))?,
            None => Operand::Imm(u64::from(fragment.dims()[usize::from(is_row_major)])),
        };
        let class = if element == Ty::F64 {
            RegClass::B64
        } else {
            RegClass::B32
        };
        let scratch = [self.fresh(RegClass::B64, 1), self.fresh(class, 1)];
        let movement = Move {
            fragment,
            is_row_major,
            access,
            scratch,
        };
        let mut reads = vec![base, stride];
        let mut written = Vec::new();
        if writes {
            reads.extend(registers.into_iter().map(Operand::Reg));
        } else {
            written = registers;
        }
        let class = if writes { Class::StoreGlobal } else { Class::LoadGlobal };
        self.cold(What::Move(movement), class, written, reads);
        Ok(())
    }
}
