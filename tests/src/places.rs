//! Where tensors lie in memory, and where a sequence's vectors are found in them.

/// How a tensor's first two dimensions hold the positions of sequences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rows {
    /// `[batch, seq, ..]`: a row for each sequence.
    Dense,
    /// `[1, total, ..]`: one sequence behind another.
    Packed {
        /// Where each begins.
        starts: Vec<usize>,
    },
    /// `[pages, page_size, ..]`: position `p` of a sequence is slot `p % page_size` of the page that the sequence's
    /// row of the table has in column `p / page_size`.
    Paged {
        /// Columns of the table.
        width: usize,
        /// The table, row by row. Entries that no position needs may be anything.
        table: Vec<i32>,
    },
}

/// A tensor of vectors in one of the case's buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of the buffer.
    pub buffer: usize,
    /// Sizes of the two dimensions that positions lie in ([`Rows`]), heads, head dim.
    pub shape: [usize; 4],
    /// Element of the buffer at which the tensor begins.
    pub offset: usize,
    /// Distances in elements along the first three dimensions; the last one is contiguous.
    pub strides: [usize; 3],
    /// Which sequences' positions these are.
    pub rows: Rows,
}

impl Place {
    /// Element of the buffer at which a vector begins.
    ///
    /// # Panics
    /// If the page table has no page for the position.
    pub fn start(&self, sequence: usize, position: usize, head: usize) -> usize {
        let [outer, inner] = match &self.rows {
            Rows::Dense => [sequence, position],
            Rows::Packed { starts } => [0, starts[sequence] + position],
            Rows::Paged { width, table } => {
                let page_size = self.shape[1];
                let page = table[sequence * width + position / page_size];
                assert!(page >= 0 && (page as usize) < self.shape[0], "page {page} of a pool of {}", self.shape[0]);
                [page as usize, position % page_size]
            }
        };
        self.offset + outer * self.strides[0] + inner * self.strides[1] + head * self.strides[2]
    }

    /// Elements that the buffer needs for this tensor.
    pub fn end(&self) -> usize {
        let [outer, inner, heads, dim] = self.shape;
        if outer * inner * heads * dim == 0 {
            return self.offset;
        }
        let [last_outer, last_inner, last_head] = [outer - 1, inner - 1, heads - 1];
        self.offset + last_outer * self.strides[0] + last_inner * self.strides[1] + last_head * self.strides[2] + dim
    }

    /// Shape and strides as the library takes them: a packed tensor has one dimension for its positions.
    pub fn tensor(&self) -> (Vec<usize>, Vec<usize>) {
        let skipped = usize::from(matches!(self.rows, Rows::Packed { .. }));
        let strides = self.strides[skipped..].iter().copied().chain([1]).collect();
        (self.shape[skipped..].to_vec(), strides)
    }
}

/// The inputs' places. Q is in buffer 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// Q.
    pub q: Place,
    /// K.
    pub k: Place,
    /// V; in K's buffer or in one of its own.
    pub v: Place,
}

impl Places {
    /// Elements of each buffer.
    pub fn sizes(&self) -> impl Iterator<Item = usize> {
        let places = [&self.q, &self.k, &self.v];
        let size = move |buffer| places.into_iter().filter(|place| place.buffer == buffer).map(Place::end).max();
        (0..=self.v.buffer).map(move |buffer| size(buffer).unwrap_or(0))
    }
}
