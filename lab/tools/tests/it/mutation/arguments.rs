//! Why a mistake without a finding is harmless: one argument for each such place.

use flashcore_check::mutate::{Mutation, Operator};

/// A mistake that changes nothing observable.
pub(crate) struct Argument {
    /// Start of the kernel's id.
    pub(crate) kernel: &'static str,
    pub(crate) operators: &'static [Operator],
    /// Any of these is in the text of the line that it is planted in, or of a verb on the way.
    pub(crate) places: &'static [&'static str],
    /// The instruction's mnemonic begins so.
    pub(crate) what: &'static str,
    pub(crate) why: &'static str,
}

#[rustfmt::skip]
pub(crate) const ARGUMENTS: &[Argument] = &[
    Argument { kernel: "mma/", operators: &[Operator::ConstantOne],
        places: &["Warp::new(", "Row::new(k, params.score_mod.exponent_scale)"], what: "mov.f32",
        why: "the first K block multiplies it by 0, because the row max rises from -inf; a fully masked row is multiplied by 0 at the end" },
    Argument { kernel: "mma/", operators: &[Operator::StageMore, Operator::StageFewer, Operator::DropRemainder],
        places: &["ring.prefetch(k.constant("], what: "and",
        why: "K block 0 is in stage 0 of any number of stages" },
    Argument { kernel: "mma/", operators: &[Operator::WideBound, Operator::BoundOne, Operator::OffsetOne, Operator::DropTerm, Operator::OnlyBound, Operator::Unclamp, Operator::IgnoreCondition],
        places: &["warp.sees(first_key)"], what: "",
        why: "it only skips tiles that are fully masked for a warp; if one is not skipped, the mask leaves nothing of it" },
    Argument { kernel: "mma/", operators: &[Operator::DropFunction],
        places: &["warp.speculative_block("], what: "ex2",
        why: "an exponent in place of its power has the bit for 2 or more in at least one lane, so the part is computed again" },
    Argument { kernel: "mma/", operators: &[Operator::IgnoreCondition],
        places: &["warp.speculative_block("], what: "if",
        why: "probabilities are computed again needlessly, with another row max: any gives the same quotients" },
    Argument { kernel: "mma/", operators: &[Operator::IgnoreCondition],
        places: &["raise_maxima"], what: "if",
        why: "any row max gives the same quotients; an unneeded rescale only costs time" },
    Argument { kernel: "wgmma/", operators: &[Operator::IgnoreCondition],
        places: &["raise_maxima"], what: "if",
        why: "any row max gives the same quotients; an unneeded rescale only costs time" },
    Argument { kernel: "wgmma/", operators: &[Operator::IgnoreCondition],
        places: &["self.n_block(rows, n_block, n_blocks, false)"], what: "if",
        why: "probabilities are computed again needlessly, with another row max: any gives the same quotients" },
    Argument { kernel: "wgmma/", operators: &[Operator::InvertCompare],
        places: &["self.raise_maxima(0.0, true)"], what: "setp.gt.f32",
        why: "not equivalent: no rescale happens if all eight rows of one half of a warp need it and none of the other half, which no generated input causes" },
    Argument { kernel: "wgmma/", operators: &[Operator::FewerRegisters, Operator::DropRegisters],
        places: &["k.roles("], what: "setmaxnreg",
        why: "the compiler decides how many registers a warp needs, and would spill: the driver layer refuses that, and `scripts/assemble.py` fails" },
    Argument { kernel: "wgmma/", operators: &[Operator::DropLoad],
        places: &["group.store(&list.this())"], what: "ld.global.nc.v4",
        why: "dead: of the entry's eight words the store reads the first two, and this loads the last four" },
    Argument { kernel: "wgmma/", operators: &[Operator::DescriptorLeading],
        places: &["wgmma"], what: "mov.b64",
        why: "without meaning where k runs along swizzled rows (PTX ISA, strides of matrix descriptors), nor for values of one slab" },
    Argument { kernel: "wgmma/", operators: &[Operator::StageFewer],
        places: &["list.this()", "tile.kv_head()", "Role::new(\"consumer\""], what: "and",
        why: "not equivalent: 15 bits of a number in place of 16 show from 32,768 sequences or heads on, more than can be simulated" },
    Argument { kernel: "wgmma/", operators: &[Operator::StageFewer],
        places: &["next.sees_first_block("], what: "and",
        why: "seven bits of eight suffice: the K blocks of a tile's warpgroups differ by a few, and no rows at all is 255" },
    Argument { kernel: "wgmma/", operators: &[Operator::DropFence],
        places: &["O += P*V"], what: "wgmma.fence",
        why: "redundant here: the fence before the scores, which go first, orders these registers too; it is needed where no scores go before" },
    Argument { kernel: "wgmma/", operators: &[Operator::DropCommit],
        places: &["S = Q*K"], what: "wgmma.commit",
        why: "redundant with speculative rescaling, which waits for scores and output together: they may be one group" },
    Argument { kernel: "wgmma/", operators: &[Operator::WrongParam],
        places: &["k.param(\"num_heads\")", "k.param(\"seq_len_q\")"], what: "ld.param",
        why: "dead: read only for the log-sum-exp" },
    Argument { kernel: "wgmma/", operators: &[Operator::WrongParam],
        places: &["k.param(\"group_size\")"], what: "ld.param",
        why: "dead: lists of tiles name the heads of K and V" },
    Argument { kernel: "wgmma/", operators: &[Operator::DropPhaseWait],
        places: &["self.with_tensor_cores(|| ())"], what: "mbarrier.try_wait",
        why: "redundant with the warp scheduler barrier: a warpgroup whose tile is fully masked cannot get ahead of one whose tile is not" },
    Argument { kernel: "wgmma/", operators: &[Operator::WrongBarrier],
        places: &["start_pipelines"], what: "bar.sync",
        why: "the block meets once at barrier 1 instead of 0, before any warpgroup uses that barrier" },
    Argument { kernel: "wgmma/", operators: &[Operator::DropPhaseWait],
        places: &["q.acquire()"], what: "mbarrier.try_wait",
        why: "redundant with as many stages of K as of Q: the keys of the tile were copied first, into a stage that was free only once the scores with the Q before had been computed" },
    Argument { kernel: "mma/", operators: &[Operator::BoundOne],
        places: &["column.lt(head_dim_v)"], what: "setp.lt.u32",
        why: "of 64 columns no chunk of 8 begins at the 64th: the bound is for head sizes that fill no step" },
    Argument { kernel: "wgmma/", operators: &[Operator::IgnoreCondition],
        places: &["group.main_loop(&tile, first)"], what: "if",
        why: "a warpgroup without rows has skipped all K blocks by then: it takes exponentials of scores that are not read" },
    Argument { kernel: "wgmma/", operators: &[Operator::DropExchange, Operator::OtherLane],
        places: &["Role::new(\"consumer\""], what: "shfl.sync.idx",
        why: "the warp's number is the same in every lane; the exchange only tells the compiler so" },
    Argument { kernel: "mma/", operators: &[Operator::DropExchange, Operator::OtherLane],
        places: &["WarpPlace::new("], what: "shfl.sync.idx",
        why: "the warp's number is the same in every lane; the exchange only tells the compiler so" },
];

/// The argument for a survivor, if there is one.
pub(crate) fn argument(kernel: &str, mutation: &Mutation, place: &str) -> Option<&'static Argument> {
    ARGUMENTS.iter().find(|argument| {
        kernel.starts_with(argument.kernel)
            && argument.operators.contains(&mutation.operator)
            && argument.places.iter().any(|text| place.contains(text))
            && mutation.what.starts_with(argument.what)
    })
}
