// Local training of many clients, one client after another on each thread.
//
// A client's arithmetic is done by one thread in one order, whoever else is in the cohort and however many threads
// there are: results do not depend on either, bit for bit.
#include <atomic>
#include <exception>
#include <thread>

#include "losses.h"
#include "network.h"
#include "optimisers.h"

namespace winnow {
namespace {

// Work through jobs 0 … count - 1 on several threads; `begin` makes what a thread needs, a callable for one job.
template <class Begin>
int on_threads(std::int64_t count, std::int64_t threads, Begin begin) {
    std::atomic<std::int64_t> next{0};
    std::atomic<int> failure{NONE};
    const auto work = [&] {
        try {
            auto job = begin();
            for (std::int64_t i = next++; i < count && !failure; i = next++)
                if (const int code = job(i)) failure = code;
        } catch (const std::length_error&) {
            failure = TOO_LARGE;
        } catch (...) {
            failure = NO_MEMORY;  // there is nothing else that could go wrong
        }
    };
    std::vector<std::thread> helpers;
    try {
        helpers.reserve(std::max<std::int64_t>(0, std::min(threads, count)));
        for (std::int64_t i = 1; i < std::min(threads, count); i++) helpers.emplace_back(work);
    } catch (const std::exception&) {
        // No more threads to be had: those that there are do the work.
    }
    work();
    for (auto& helper : helpers) helper.join();
    return failure;
}

template <class T, int L>
class ClientTraining {
  public:
    ClientTraining(const ModelSpec& model, const OptimiserSpec& optimiser, const RoundSpec& round)
        : model_(model), how_(optimiser), round_(round), network_(model, true), parameters_(model.parameters),
          gradients_(model.parameters) {}

    int operator()(std::int64_t client) {
        const T* start = row<T>(round_.start, client);
        const Correction<T> correction(round_, client);
        std::copy(start, start + model_.parameters, parameters_.begin());
        Optimiser<T> optimiser(how_, parameters_.size(), start, row<T>(round_.first_slot, client),
                               row<T>(round_.second_slot, client));
        for (std::int64_t step = 0; step < round_.steps; step++) {
            const std::int64_t place = step * round_.clients + client, size = round_.sizes[place];
            if (size == 0) break;
            std::fill(gradients_.begin(), gradients_.end(), T(0));
            for (std::int64_t first = 0; first < size; first += L)
                if (const int code = add_gradients(place * round_.width + first,
                                                   int(std::min<std::int64_t>(L, size - first)), T(1) / T(size)))
                    return code;
            correction.add_to(gradients_.data(), parameters_.data(), parameters_.size());
            optimiser.step(parameters_.data(), gradients_.data(), parameters_.size(), step + 1);
            put_back(start);
        }
        optimiser.finish(parameters_.data());
        put_back(start);
        std::copy(parameters_.begin(), parameters_.end(), static_cast<T*>(round_.result) + client * model_.parameters);
        if (round_.first_slot_result)
            std::copy(optimiser.first().begin(), optimiser.first().end(),
                      static_cast<T*>(round_.first_slot_result) + client * model_.parameters);
        return NONE;
    }

  private:
    // What is not trained stays as it was, whatever the optimiser makes of its gradient.
    void put_back(const T* start) {
        if (!round_.trainable) return;
        for (std::size_t i = 0; i < parameters_.size(); i++)
            if (!round_.trainable[i]) parameters_[i] = start[i];
    }

    int add_gradients(std::int64_t first, int samples, T weight) {
        const std::int64_t* rows = round_.batches + first;
        if (!network_.read(static_cast<const T*>(round_.x), round_.samples, rows, samples)) return BAD_ROW;
        network_.forward(parameters_.data(), 0, int(model_.count));
        T* losses = static_cast<T*>(round_.losses) + first;
        if (const int code = model_.loss == SQUARED_ERROR ? add_squared_errors(rows, samples, weight, losses)
                                                          : add_cross_entropies(rows, samples, weight, losses))
            return code;
        network_.backward(parameters_.data(), gradients_.data(), samples);
        return NONE;
    }

    int add_squared_errors(const std::int64_t* rows, int samples, T weight, T* losses) {
        const Tensor<T>& output = network_.output();
        const T* targets = static_cast<const T*>(round_.y);
        std::fill(output.slope.data, output.slope.data + network_.outputs() * L, T(0));
        for (int s = 0; s < samples; s++)
            losses[s] = squared_error<T, L>(output, targets + rows[s] * network_.outputs(), s, weight);
        return NONE;
    }

    int add_cross_entropies(const std::int64_t* rows, int samples, T weight, T* losses) {
        std::int64_t right[L];
        for (int s = 0; s < samples; s++) {
            right[s] = static_cast<const std::int64_t*>(round_.y)[rows[s]];
            if (right[s] < 0 || right[s] >= network_.outputs()) return BAD_CLASS;
        }
        cross_entropy<T, L>(network_.output(), right, samples, weight, losses);
        return NONE;
    }

    const ModelSpec& model_;
    const OptimiserSpec& how_;
    const RoundSpec& round_;
    Network<T, L> network_;
    std::vector<T> parameters_, gradients_;
};

template <class T, int L>
int train(const ModelSpec& model, const OptimiserSpec& optimiser, const RoundSpec& round) {
    return on_threads(round.clients, round.threads, [&] { return ClientTraining<T, L>(model, optimiser, round); });
}

// One model's view of samples: its outputs, and what one of its layers makes of them.
template <class T, int L>
class ForwardPass {
  public:
    ForwardPass(const ModelSpec& model, const ForwardSpec& spec) : model_(model), spec_(spec), network_(model, false) {}

    int operator()(std::int64_t block) {
        const T* parameters = static_cast<const T*>(spec_.parameters);
        const std::int64_t first = block * L;
        const int samples = int(std::min<std::int64_t>(L, spec_.count - first)), watched = int(spec_.watched_layer);
        if (!network_.read(static_cast<const T*>(spec_.x), spec_.samples, spec_.rows + first, samples)) return BAD_ROW;
        network_.forward(parameters, 0, watched + 1);
        if (watched >= 0) write(network_.after(watched), static_cast<T*>(spec_.watched_outputs), first, samples);
        if (spec_.outputs) {
            network_.forward(parameters, watched + 1, int(model_.count));
            write(network_.output().value, static_cast<T*>(spec_.outputs), first, samples);
        }
        return NONE;
    }

  private:
    // Each channel's image summed up, row by row so that rounding stays small.
    static void write(const View<T>& view, T* all, std::int64_t first, int samples) {
        const Shape shape = view.shape;
        for (int c = 0; c < shape.channels; c++) {
            Vector<T, L> total = {};
            for (int y = 0; y < shape.rows; y++) {
                Vector<T, L> row = {};
                for (int x = 0; x < shape.cols; x++) row += load<T, L>(view.at(c, y, x));
                total += row;
            }
            for (int s = 0; s < samples; s++) all[(first + s) * shape.channels + c] = total[s];
        }
    }

    const ModelSpec& model_;
    const ForwardSpec& spec_;
    Network<T, L> network_;
};

template <class T, int L>
int forward(const ModelSpec& model, const ForwardSpec& spec) {
    return on_threads((spec.count + L - 1) / L, spec.threads, [&] { return ForwardPass<T, L>(model, spec); });
}

}  // namespace
}  // namespace winnow

using namespace winnow;

// A library holds one precision and one width of blocks, REAL and LANES: several are compiled sooner than one with all.
extern "C" {

int winnow_train(const ModelSpec* model, const OptimiserSpec* optimiser, const RoundSpec* round) {
    return train<REAL, LANES>(*model, *optimiser, *round);
}

int winnow_forward(const ModelSpec* model, const ForwardSpec* spec) { return forward<REAL, LANES>(*model, *spec); }
}
