//! Why a mistake that nothing shows is none: one argument for each place where that is so.

use flashcore_check::mutate::{Mutation, Operator};

/// A mistake that changes nothing which anybody could observe.
pub(crate) struct Argument {
    /// Start of the kernel's id.
    pub(crate) kernel: &'static str,
    pub(crate) operators: &'static [Operator],
    /// Text of the line that it is planted in, or of a verb on the way.
    pub(crate) place: &'static str,
    /// The instruction's mnemonic begins so.
    pub(crate) what: &'static str,
    pub(crate) why: &'static str,
}

#[rustfmt::skip]
pub(crate) const ARGUMENTS: &[Argument] = &[
    Argument { kernel: "mma/", operators: &[Operator::ConstantOne],
        place: "State::new(", what: "mov.f32",
        why: "the first tile multiplies it by 0, as a row's first reference is as far above none as can be; what sees nothing is multiplied by 0 at the end" },
    Argument { kernel: "mma/", operators: &[Operator::ConstantOne],
        place: "sum: k.var(0.0)", what: "mov.f32",
        why: "the first tile multiplies it by 0, as a row's first reference is as far above none as can be; what sees nothing is multiplied by 0 at the end" },
    Argument { kernel: "mma/", operators: &[Operator::StageMore, Operator::StageFewer, Operator::DropRemainder],
        place: "ring.prefetch(&sequence, k.constant(", what: "and",
        why: "turn 0 is in stage 0 of any number of stages" },
    Argument { kernel: "mma/", operators: &[Operator::WideBound, Operator::BoundOne, Operator::OffsetOne, Operator::DropTerm, Operator::OnlyBound, Operator::Unclamp, Operator::IgnoreCondition],
        place: "warp.sees(key0)", what: "",
        why: "it only skips tiles of which a warp sees nothing; of one that is not skipped the mask leaves nothing" },
    Argument { kernel: "mma/", operators: &[Operator::DropFunction],
        place: "warp.bold_tile(", what: "ex2",
        why: "an exponent taken for its power has the bit that says 2 or more, in some lane at least: the part is computed again by the code for that" },
    Argument { kernel: "mma/", operators: &[Operator::IgnoreCondition],
        place: "warp.bold_tile(", what: "if",
        why: "probabilities that need not be are computed again, by another reference: any gives the same quotients" },
    Argument { kernel: "mma/", operators: &[Operator::IgnoreCondition],
        place: "raise_references", what: "if",
        why: "any reference gives the same quotients; raising it where it need not be costs time alone" },
    Argument { kernel: "wgmma/", operators: &[Operator::IgnoreCondition],
        place: "raise_references", what: "if",
        why: "any reference gives the same quotients; raising it where it need not be costs time alone" },
    Argument { kernel: "wgmma/", operators: &[Operator::IgnoreCondition],
        place: "self.turn(None", what: "if",
        why: "probabilities that need not be are computed again, by another reference: any gives the same quotients" },
    Argument { kernel: "wgmma/", operators: &[Operator::InvertCompare],
        place: "self.raise_references(0.0, true)", what: "setp.gt.f32",
        why: "not equivalent: a reference is not raised if all eight rows of one half of a warp ask for it and none of the other half, which no generated input does" },
    Argument { kernel: "wgmma/", operators: &[Operator::FewerRegisters, Operator::DropRegisters],
        place: "k.roles(", what: "setmaxnreg",
        why: "how many registers a warp needs is the compiler's to say, which would spill: that is refused when a kernel is loaded, and fails `scripts/assemble.py`" },
    Argument { kernel: "wgmma/", operators: &[Operator::DropLoad],
        place: "group.store(&list.this())", what: "ld.global.nc.v4",
        why: "dead: of the entry's eight words the store reads the first two, and this loads the last four" },
    Argument { kernel: "wgmma/", operators: &[Operator::DescriptorLeading],
        place: "wgmma", what: "mov.b64",
        why: "without meaning where k runs along swizzled rows (PTX ISA, strides of matrix descriptors), nor for values of one slab" },
    Argument { kernel: "wgmma/", operators: &[Operator::StageFewer],
        place: "list.this()", what: "and",
        why: "not equivalent: 15 bits of a number in place of 16 show from 32,768 sequences or heads on, more than can be simulated" },
    Argument { kernel: "wgmma/", operators: &[Operator::StageFewer],
        place: "self.values_at(tile, turn)", what: "and",
        why: "not equivalent: 15 bits of a number in place of 16 show from 32,768 sequences or heads on, more than can be simulated" },
    Argument { kernel: "wgmma/", operators: &[Operator::StageFewer],
        place: "next.sees_at_once(", what: "and",
        why: "seven bits of eight tell as much: warpgroups of a tile see keys at most some turns apart, and no rows at all is 255" },
    Argument { kernel: "wgmma/", operators: &[Operator::StageFewer],
        place: "Role::new(\"math\"", what: "and",
        why: "not equivalent: 15 bits of a number in place of 16 show from 32,768 sequences or heads on, more than can be simulated" },
    Argument { kernel: "wgmma/", operators: &[Operator::DropFence],
        place: "O += P*V", what: "wgmma.fence",
        why: "redundant here: the fence before the scores, which go first, orders these registers too; it is needed where no scores go before" },
    Argument { kernel: "wgmma/", operators: &[Operator::DropCommit],
        place: "S = Q*K", what: "wgmma.commit",
        why: "redundant with bold rescaling, which waits for scores and output together: they may be one group" },
    Argument { kernel: "wgmma/", operators: &[Operator::WrongParam],
        place: "k.param(\"num_heads\")", what: "ld.param",
        why: "dead: read for the log-sum-exp alone" },
    Argument { kernel: "wgmma/", operators: &[Operator::WrongParam],
        place: "k.param(\"seq_len_q\")", what: "ld.param",
        why: "dead: read for the log-sum-exp alone" },
    Argument { kernel: "wgmma/", operators: &[Operator::WrongParam],
        place: "k.param(\"group_size\")", what: "ld.param",
        why: "dead: lists of tiles name the heads of K and V" },
    Argument { kernel: "wgmma/", operators: &[Operator::DropPhaseWait],
        place: "self.pass()", what: "mbarrier.try_wait",
        why: "redundant with turns: a warpgroup that sees nothing of a tile cannot get ahead of one that does, which waits for it" },
    Argument { kernel: "wgmma/", operators: &[Operator::WrongBarrier],
        place: "start_pipelines", what: "bar.sync",
        why: "the block meets once at barrier 1 in place of 0, before anybody takes a turn there" },
    Argument { kernel: "wgmma/", operators: &[Operator::DropPhaseWait],
        place: "self.copy_tile(", what: "mbarrier.try_wait",
        why: "redundant with as many stages of K as of Q: the keys of the tile were copied first, into a stage that was free only once the scores with the Q before had been computed" },
    Argument { kernel: "mma/", operators: &[Operator::BoundOne],
        place: "column.lt(head_dim_v)", what: "setp.lt.u32",
        why: "of 64 columns no chunk of 8 begins at the 64th: the bound is for head sizes that fill no step" },
    Argument { kernel: "wgmma/", operators: &[Operator::IgnoreCondition],
        place: "group.turns(&tile, unseen)", what: "if",
        why: "a warpgroup without rows has passed over all turns by then: it takes exponentials of scores that nobody reads" },
    Argument { kernel: "wgmma/", operators: &[Operator::DropExchange, Operator::OtherLane],
        place: "Role::new(\"math\"", what: "shfl.sync.idx",
        why: "the warp's number is the same in every lane; the exchange only tells the compiler" },
    Argument { kernel: "mma/", operators: &[Operator::DropExchange, Operator::OtherLane],
        place: "WarpPlace::new(", what: "shfl.sync.idx",
        why: "the warp's number is the same in every lane; the exchange only tells the compiler" },
];

/// The argument for a survivor, if there is one.
pub(crate) fn argument(kernel: &str, mutation: &Mutation, place: &str) -> Option<&'static Argument> {
    ARGUMENTS.iter().find(|argument| {
        kernel.starts_with(argument.kernel)
            && argument.operators.contains(&mutation.operator)
            && place.contains(argument.place)
            && mutation.what.starts_with(argument.what)
    })
}
