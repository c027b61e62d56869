//! How the threads of a block share its tiles.
//!
//! They form a grid of `2·warps` rows by 16 columns. Thread (r, c) has rows r, r + 2·warps, … of the tile that the
//! block owns; rows c, c + 16, … of a tile that it walks, which are columns of scores; and of the sums quads of columns
//! c, c + 16, …. So a row of scores lives in one half-warp: its maximum and sum are four shuffles away, and P passes
//! through shared memory without a block barrier.

use flashcore_ir::{Cache, GlobalPtr, KernelBuilder, SharedPtr, SharedTile, TileShape, Val, Var, Widen};

use super::Config;

/// Threads that share a row.
pub(super) const THREAD_COLS: u32 = 16;

/// A tile that a block owns and one that it walks, and the warps that share them.
#[derive(Clone, Copy)]
pub(super) struct Threads {
    pub own: u32,
    pub walked: u32,
    warps: u32,
}

impl Threads {
    /// The threads of a kernel that owns query rows and walks keys; it has tiles.
    pub(super) fn queries(config: &Config) -> Threads {
        let ((own, walked), warps) = (config.tile.unwrap_or((16, 16)), config.warps);
        Threads { own, walked, warps }
    }

    /// The threads of a kernel that owns keys and walks query rows.
    pub(super) fn keys(config: &Config) -> Threads {
        let Threads { own, walked, warps } = Threads::queries(config);
        let (own, walked) = (walked, own);
        Threads { own, walked, warps }
    }

    pub(super) fn rows(&self) -> u32 {
        2 * self.warps
    }

    pub(super) fn rows_per_thread(&self) -> u32 {
        self.own / self.rows()
    }

    pub(super) fn columns_per_thread(&self) -> u32 {
        self.walked / THREAD_COLS
    }

    /// Registers of sums of so many columns.
    pub(super) fn sum_registers(&self, columns: u32) -> u32 {
        self.rows_per_thread() * 4 * quads(columns)
    }

    /// Registers that a thread may have.
    pub(super) fn registers(&self) -> u32 {
        255.min(65_536 / (32 * self.warps))
    }

    /// A tile of P or dS. The two rows that a warp writes at once lie 16 banks apart.
    #[track_caller]
    pub(super) fn square<'k>(&self, k: &'k KernelBuilder, name: &str) -> SharedTile<'k, f32> {
        let padding = if self.walked.is_multiple_of(32) { 16 } else { 0 };
        k.shared_tile(name, TileShape::new(self.own, self.walked).padded(padding))
    }
}

/// A tile of a tensor's rows. Rows padded by four elements start four banks apart, so that a column of quads is read
/// without conflicts.
#[track_caller]
pub(super) fn operand<'k>(k: &'k KernelBuilder, name: &str, rows: u32, columns: u32) -> SharedTile<'k, f32> {
    k.shared_tile(name, TileShape::new(rows, columns).padded(4))
}

/// Quads (four neighbouring columns) of a thread.
fn quads(columns: u32) -> u32 {
    (columns / 4).div_ceil(THREAD_COLS)
}

#[track_caller]
fn load4<'k>(at: SharedPtr<'k, f32>) -> [Val<'k, f32>; 4] {
    let values = at.load_words(4, Cache::Default);
    [values[0], values[1], values[2], values[3]]
}

/// Which rows and columns of a tile are this thread's.
#[derive(Clone, Copy)]
pub(super) struct Mine<'k> {
    k: &'k KernelBuilder,
    pub threads: Threads,
    pub thread_row: Val<'k, u32>,
    pub thread_col: Val<'k, u32>,
}

impl<'k> Mine<'k> {
    #[track_caller]
    pub(super) fn new(k: &'k KernelBuilder, threads: Threads) -> Self {
        Mine {
            k,
            threads,
            thread_row: k.thread_idx() / THREAD_COLS,
            thread_col: k.thread_idx() % THREAD_COLS,
        }
    }

    /// Rows of the tile.
    pub(super) fn rows(&self) -> impl Iterator<Item = Val<'k, u32>> + use<'k> {
        let (thread_row, rows) = (self.thread_row, self.threads.rows());
        (0..self.threads.rows_per_thread()).map(move |i| thread_row + i * rows)
    }

    /// A column of the tile.
    #[track_caller]
    pub(super) fn column(&self, j: usize) -> Val<'k, u32> {
        self.thread_col + j as u32 * THREAD_COLS
    }

    /// Four neighbouring columns of each of this thread's rows.
    #[track_caller]
    fn quads(&self, tile: SharedTile<'k, f32>, column: Val<'k, u32>) -> Vec<[Val<'k, f32>; 4]> {
        let first = tile.at(self.thread_row, column);
        let rows = (0..self.threads.rows_per_thread()).map(|i| load4(tile.down(first, i * self.threads.rows())));
        rows.collect()
    }

    /// The products of this thread's rows of one tile with its rows of the other, over all columns.
    #[track_caller]
    pub(super) fn products(&self, own: SharedTile<'k, f32>, walked: SharedTile<'k, f32>) -> Vec<Vec<Var<'k, f32>>> {
        let columns = self.threads.columns_per_thread();
        let zeros = |_| (0..columns).map(|_| self.k.var(0.0)).collect();
        let rows: Vec<Vec<_>> = (0..self.threads.rows_per_thread()).map(zeros).collect();
        self.k.for_uniform(0u32, own.cols(), 4, |d| {
            let mine = self.quads(own, d);
            let first = walked.at(self.thread_col, d);
            for j in 0..columns {
                let other = load4(walked.down(first, j * THREAD_COLS));
                for (row, mine) in rows.iter().zip(&mine) {
                    let value = row[j as usize];
                    mine.iter().zip(other).for_each(|(&a, b)| value.fma_assign(a, b));
                }
            }
        });
        rows
    }

    /// Stores this thread's element (i, j) of a tile.
    #[track_caller]
    pub(super) fn store(&self, tile: SharedTile<'k, f32>, i: usize, j: usize, value: Val<'k, f32>) {
        let row = tile.down(
            tile.at(self.thread_row, self.thread_col),
            i as u32 * self.threads.rows(),
        );
        row.plus((j as u32 * THREAD_COLS) as i32).store(value);
    }

    /// Sums of so many columns, 0 at first.
    #[track_caller]
    pub(super) fn sums(&self, columns: u32) -> Sums<'k> {
        let zeros = |_| (0..4 * quads(columns)).map(|_| self.k.var(0.0)).collect();
        let rows = (0..self.threads.rows_per_thread()).map(zeros).collect();
        let mine = *self;
        Sums { mine, columns, rows }
    }
}

/// This thread's part of the output or of a gradient: for each of its rows, its quads of columns.
pub(super) struct Sums<'k> {
    mine: Mine<'k>,
    columns: u32,
    pub rows: Vec<Vec<Var<'k, f32>>>,
}

impl<'k> Sums<'k> {
    /// First column of a quad. Threads past the last quad repeat it, and store nothing.
    #[track_caller]
    fn column(&self, quad: usize) -> Val<'k, u32> {
        let column = self.mine.column(quad) * 4u32;
        if (self.columns / 4).is_multiple_of(THREAD_COLS) {
            column
        } else {
            column.min(self.columns - 4)
        }
    }

    /// Adds the product of this thread's rows of one tile with the other tile.
    #[track_caller]
    pub(super) fn add(&self, rows: SharedTile<'k, f32>, other: SharedTile<'k, f32>) {
        self.mine.k.for_uniform(0u32, rows.cols(), 4, |n| {
            let factors = self.mine.quads(rows, n);
            for quad in 0..quads(self.columns) as usize {
                let first = other.at(n, self.column(quad));
                for step in 0..4 {
                    let values = load4(other.down(first, step as u32));
                    for (sums, factors) in self.rows.iter().zip(&factors) {
                        let sums = sums[4 * quad..].iter().zip(values);
                        sums.for_each(|(sum, value)| sum.fma_assign(factors[step], value));
                    }
                }
            }
        });
    }

    /// Stores row `i`, times a factor, with accesses of `bytes` bytes.
    #[track_caller]
    pub(super) fn store<E: Widen>(&self, i: usize, to: GlobalPtr<'k, E>, factor: Option<Val<'k, f32>>, bytes: u32) {
        for (quad, sums) in self.rows[i].chunks(4).enumerate() {
            let column = self.mine.column(quad) * 4u32;
            let scaled = |&sum: &Var<'k, f32>| factor.map_or_else(|| sum.get(), |factor| sum * factor);
            let values: Vec<_> = sums.iter().map(scaled).collect();
            self.mine.k.if_(column.lt(self.columns).divergent(), || {
                to.offset(column).store_f32s(&values, bytes, Cache::Default);
            });
        }
    }
}
