//! Which query of which head a row of a Q tile is. With packed heads (`pack_gqa`), the query heads that share K and V
//! share a tile, so that few queries of many heads fill it.

use flashcore_ir::{Element, GlobalPtr, Val};
use flashcore_problem::Problem;

use super::divisor::Divisor;
use super::lengths::TensorParam;
use super::params::RowParams;

/// The query heads that have rows in one tile, as a kernel is built for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TileHeads {
    /// One query head.
    One,
    /// All heads that share K and V; their number is a launch argument. Row `i`, counted through all tiles, is query
    /// `i / group_size` of head `i % group_size`.
    Dense,
    /// All heads that share K and V; their number is baked in. Each warpgroup has whole queries.
    Warpgroups(Packing),
}

impl TileHeads {
    pub(crate) fn of_warpgroups(packing: Packing) -> TileHeads {
        debug_assert!(!packing.spans_warpgroups(), "{packing:?}");
        match packing {
            Packing::NONE => TileHeads::One,
            packing => TileHeads::Warpgroups(packing),
        }
    }

    /// Its part of a kernel's name.
    pub(crate) fn name(self) -> String {
        match self {
            TileHeads::One => String::new(),
            TileHeads::Dense => "_gqa".to_string(),
            TileHeads::Warpgroups(packing) => format!("_g{}", packing.heads),
        }
    }

    /// Number of heads that have tiles: query heads, or K/V heads if heads are packed.
    pub(crate) fn of_problem(self, problem: &Problem) -> usize {
        match self {
            TileHeads::One => problem.num_heads(),
            TileHeads::Dense | TileHeads::Warpgroups(_) => problem.num_kv_heads(),
        }
    }

    /// Rows, counted through all tiles, up to the last row of query `queries - 1`.
    pub(crate) fn rows_of(self, problem: &Problem, queries: usize) -> usize {
        match self {
            TileHeads::One => queries,
            TileHeads::Dense => queries * problem.group_size(),
            TileHeads::Warpgroups(packing) => packing.rows_of(queries),
        }
    }
}

/// The query rows that share a K/V head in one tile.
#[derive(Clone, Copy)]
pub(crate) struct QueryRows<'k> {
    pub batch: Val<'k, u32>,
    /// First of the heads whose rows these are.
    pub head: Val<'k, u32>,
    /// Number of rows, of all tiles.
    pub count: Val<'k, u32>,
    heads: TileHeads,
    /// Query heads per K/V head.
    group_size: Val<'k, u32>,
}

impl<'k> QueryRows<'k> {
    /// The rows of `[batch, head]` of a sequence with these parameters.
    #[track_caller]
    pub(crate) fn new(params: &RowParams<'k>, heads: TileHeads, [batch, head]: [Val<'k, u32>; 2]) -> Self {
        let (queries, group_size) = (params.seq_len_q, params.group_size);
        let count = match heads {
            TileHeads::One => queries,
            TileHeads::Dense => queries * group_size,
            TileHeads::Warpgroups(packing) => {
                let whole = packing.queries();
                queries / whole * WARPGROUP_ROWS + queries % whole * packing.heads
            }
        };
        QueryRows {
            batch,
            head,
            count,
            heads,
            group_size,
        }
    }

    /// Whether a row below [`Self::count`] is live; `None` if all are.
    #[track_caller]
    pub(crate) fn is_query(&self, row: Val<'k, u32>) -> Option<Val<'k, bool>> {
        match self.heads {
            TileHeads::Warpgroups(packing) if packing.leaves_rows() => Some((row % WARPGROUP_ROWS).lt(packing.rows())),
            _ => None,
        }
    }

    #[track_caller]
    fn head_and_query(&self, row: Val<'k, u32>) -> (Val<'k, u32>, Val<'k, u32>) {
        match self.heads {
            TileHeads::One => (self.head, row),
            TileHeads::Dense => (self.head + row % self.group_size, row / self.group_size),
            TileHeads::Warpgroups(packing) => {
                let (head, query) = packing.head_and_query(row);
                (self.head + head, query)
            }
        }
    }

    /// Head of a row in its batch.
    #[track_caller]
    pub(crate) fn head_of(&self, row: Val<'k, u32>) -> Val<'k, u32> {
        self.head_and_query(row).0
    }

    /// Head of all batches and query of a row.
    #[track_caller]
    pub(crate) fn batch_head_and_query(
        &self,
        num_heads: Val<'k, u32>,
        row: Val<'k, u32>,
    ) -> (Val<'k, u32>, Val<'k, u32>) {
        let (head, query) = self.head_and_query(row);
        (self.batch.fma(num_heads, head), query)
    }

    /// Query of a row; a dead row has the query of the last live row before it.
    #[track_caller]
    pub(crate) fn query(&self, row: Val<'k, u32>) -> Val<'k, u32> {
        match self.heads {
            TileHeads::One => row,
            TileHeads::Dense => row / self.group_size,
            TileHeads::Warpgroups(packing) => {
                let (whole, rows) = (packing.queries(), WARPGROUP_ROWS);
                row / rows * whole + (row % rows / packing.heads).min(whole - 1)
            }
        }
    }

    #[track_caller]
    pub(crate) fn of<E: Element>(&self, tensor: &TensorParam<'k, E>, row: Val<'k, u32>) -> GlobalPtr<'k, E> {
        let (head, query) = self.head_and_query(row);
        tensor.row(tensor.head(self.batch, head), query)
    }
}

/// Rows of a Q tile that a warpgroup has.
pub(crate) const WARPGROUP_ROWS: u32 = 64;

/// Rows of a Q tile that a warp has.
const WARP_ROWS: u32 = 16;

/// How the query heads of a K/V head share a tile, where their number is baked into a kernel. Each warpgroup, or each
/// tile, has as many whole queries as fit: its row `i` is query `i / heads` of head `i % heads`. The rows left over are
/// dead: they are computed from zeros and not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packing {
    heads: u32,
    /// Rows that whole queries share: a warpgroup's, or a tile's.
    pub(crate) shared_rows: u32,
}

impl Packing {
    /// Each query head has tiles of its own: rows are queries.
    pub(crate) const NONE: Packing = Packing {
        heads: 1,
        shared_rows: WARPGROUP_ROWS,
    };

    /// Query heads per K/V head that can be packed, at most.
    pub(crate) const MAX_HEADS: usize = WARPGROUP_ROWS as usize;

    /// Whether all query heads of a K/V head fit a tile, if there are several.
    pub(crate) fn serves(problem: &Problem) -> bool {
        (2..=Packing::MAX_HEADS).contains(&problem.group_size())
    }

    /// The heads of a problem packed, which are [`Self::MAX_HEADS`] per K/V head at most.
    pub(crate) fn all_of(problem: &Problem) -> Packing {
        Packing {
            heads: problem.group_size() as u32,
            shared_rows: WARPGROUP_ROWS,
        }
    }

    /// All heads packed, with whole queries in a tile of `rows` rows, not in each warpgroup: 192 rows have 38 queries
    /// of five heads, three times 64 rows have 36.
    pub(crate) fn in_tiles_of(problem: &Problem, rows: u32) -> Packing {
        Packing {
            shared_rows: rows,
            ..Packing::all_of(problem)
        }
    }

    /// How a problem's heads are packed in tiles of `rows` rows with `splits` splits of the keys, on `sms` SMs. Whole
    /// queries share a tile where that saves a round of tiles on all SMs. As the warpgroups of a tile store its rows
    /// together, each takes 0.5 to 0.9 us longer (run `serve-chunks`), so no more rounds may be left than were timed:
    /// four, and one under causal masks, whose tiles are assigned evenly already. With lengths on the device they were
    /// not tried. Which rows share a warp decides when maxima are raised, so what must not depend on the batch goes
    /// without.
    pub(crate) fn for_tiles(problem: &Problem, rows: u32, splits: u32, sms: u32) -> Packing {
        let (in_warpgroups, in_tiles) = (Packing::all_of(problem), Packing::in_tiles_of(problem, rows));
        let rounds = |packing: Packing| {
            let tiles = packing.tiles(problem, rows) * splits as usize;
            tiles.div_ceil(sms.max(1) as usize)
        };
        let (left, most_left) = (rounds(in_tiles), if problem.mask().is_full() { 4 } else { 1 });
        let pays = left < rounds(in_warpgroups) && left <= most_left;
        if pays && !problem.has_lengths() && problem.batch_invariant().is_none() {
            in_tiles
        } else {
            in_warpgroups
        }
    }

    /// Whether the rows of a query may be in two warpgroups: whole queries fill a tile, not each warpgroup.
    pub(crate) const fn spans_warpgroups(self) -> bool {
        self.shared_rows > WARPGROUP_ROWS
    }

    /// Query heads that share a tile: 1 where none do.
    pub(crate) const fn heads(self) -> u32 {
        self.heads
    }

    /// Queries of a warpgroup, or of a tile.
    pub(crate) const fn queries(self) -> u32 {
        self.shared_rows / self.heads
    }

    /// Queries in a tile of `rows` rows.
    pub(crate) const fn queries_in(self, rows: u32) -> u32 {
        match self.heads {
            1 => rows,
            _ => rows / self.shared_rows * self.queries(),
        }
    }

    /// Tiles of `rows` rows of all heads of a problem.
    pub(crate) fn tiles(self, problem: &Problem, rows: u32) -> usize {
        let heads = problem.batch() * problem.num_heads() / self.heads as usize;
        heads * problem.seq_len_q().div_ceil(self.queries_in(rows) as usize)
    }

    /// Rows, counted through all tiles and with dead ones, up to the last row of query `queries - 1`.
    pub(crate) const fn rows_of(self, queries: usize) -> usize {
        let whole = self.queries() as usize;
        queries / whole * self.shared_rows as usize + queries % whole * self.heads as usize
    }

    /// Gives the query of a row counted through all tiles; a dead row has the query of the last live row before it.
    /// Work lists ask for several rows of every tile.
    pub(crate) fn query_of(self) -> impl Fn(usize) -> usize {
        let (rows, whole) = (self.shared_rows, self.queries());
        let [by_rows, by_heads] = [rows, self.heads].map(Divisor::from);
        move |row| {
            let before = by_rows.floor_div(row as u32);
            let query = by_heads.floor_div(row as u32 - before * rows).min(whole - 1);
            (before * whole + query) as usize
        }
    }

    /// Live rows of a warpgroup, or of a tile: the first ones.
    pub(crate) const fn rows(self) -> u32 {
        self.queries() * self.heads
    }

    /// Whether there are dead rows. Then the rows of a warpgroup, or of a tile, are stored together.
    pub(crate) const fn leaves_rows(self) -> bool {
        self.rows() < self.shared_rows
    }

    /// Head and query of a row of a tile, relative to the tile's first head and query.
    #[track_caller]
    fn head_and_query<'k>(self, row: Val<'k, u32>) -> (Val<'k, u32>, Val<'k, u32>) {
        if !self.leaves_rows() || self.spans_warpgroups() {
            return (row % self.heads, row / self.heads);
        }
        let (warpgroup, row) = (row / WARPGROUP_ROWS, row % WARPGROUP_ROWS);
        (row % self.heads, warpgroup * self.queries() + row / self.heads)
    }

    /// Query of a row of a tile whose first query is `first_query`. Dead rows have a query that is not of this tile.
    #[track_caller]
    pub(crate) fn query<'k>(self, first_query: Val<'k, u32>, row: Val<'k, u32>) -> Val<'k, u32> {
        match self {
            Packing::NONE => first_query + row,
            _ => first_query + self.head_and_query(row).1,
        }
    }

    /// Head of a row of a tile whose first head is `first_head`, counted in one batch or through all.
    #[track_caller]
    pub(crate) fn head<'k>(self, first_head: Val<'k, u32>, row: Val<'k, u32>) -> Val<'k, u32> {
        match self {
            Packing::NONE => first_head,
            _ => first_head + self.head_and_query(row).0,
        }
    }

    /// Rows of a tile that are stored at a time: a warp's, or, where these are no whole box, a warpgroup's or the
    /// tile's.
    pub(crate) const fn stored_rows(self) -> u32 {
        if self.leaves_rows() || self.spans_warpgroups() {
            self.shared_rows
        } else {
            WARP_ROWS
        }
    }

    /// The box of a part of `rows` rows, in dimensions (heads, seq, batch).
    pub(crate) fn box_of(self, rows: u32) -> [u32; 3] {
        let heads = self.heads.min(rows);
        [heads, rows / heads, 1]
    }
}

/// The heads and queries of the two rows of a tile that a lane has, its halves.
#[derive(Clone, Copy)]
pub(crate) struct LaneRows<'k> {
    /// The first row, within the tile. The other one is eight further down.
    pub first: Val<'k, u32>,
    pub packing: Packing,
}

impl<'k> LaneRows<'k> {
    #[track_caller]
    pub(crate) fn query(&self, first_query: Val<'k, u32>, half: usize) -> Val<'k, u32> {
        let down = 8 * half as u32;
        match self.packing {
            Packing::NONE => first_query + self.first + down,
            packing => packing.query(first_query, self.first + down),
        }
    }

    /// [`Self::query`] for stores: a dead row has a query past the end of any sequence, and is not stored.
    #[track_caller]
    pub(crate) fn stored_query(&self, first_query: Val<'k, u32>, half: usize) -> Val<'k, u32> {
        let query = self.query(first_query, half);
        if !self.packing.leaves_rows() {
            return query;
        }
        let row = (self.first + 8 * half as u32) % self.packing.shared_rows;
        row.lt(self.packing.rows()).select(query, u32::MAX)
    }

    #[track_caller]
    pub(crate) fn head(&self, first_head: Val<'k, u32>, half: usize) -> Val<'k, u32> {
        match self.packing {
            Packing::NONE => first_head,
            packing => packing.head(first_head, self.first + 8 * half as u32),
        }
    }
}
